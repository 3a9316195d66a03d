// What the families' configurations have in common: the fields of a Llama-like decoder, its experts
// and its layers. Names of tensors are in decoder_tensors.h.
#pragma once

#include <vector>

#include "model/config_fields.h"
#include "model/config_limits.h"
#include "model/model_spec.h"

namespace convene::model {

// Used where config.json is silent; transformers' defaults, which differ from family to family.
struct DecoderDefaults {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  // 0: as many as heads
  int head_dim = 0;      // 0: hidden_size / heads
  int max_positions = 0;
  double norm_epsilon = 0;
  double rope_theta = 0;
};

struct DecoderConfig {
  ModelSpec spec;           // without layers and tensors
  AttentionSpec attention;  // of every layer, without what is a family's own
  int num_layers = 0;
};

// vocab_size, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
// hidden_act, max_position_embeddings, rms_norm_eps, tie_word_embeddings and RoPE.
DecoderConfig ReadDecoder(ConfigFields& config, const DecoderDefaults& defaults);

// Heads that fit each other: query heads a multiple of key/value heads, an even head_dim; sets the
// scale of the scores.
void FinishAttention(ConfigFields& config, AttentionSpec& attention);

// The window in sliding_window, 0 (none) where it is null; to be read only where a layer has one,
// since models without windows may have any number there.
int ReadWindow(ConfigFields& config, int fallback);

// Any activation but SiLU is a mistake.
void CheckActivation(ConfigFields& config, std::string_view name);

// Experts that fit each other and `num_layers` layers.
void CheckExperts(ConfigFields& config, const MoeSpec& moe, int num_layers);

// Layers whose FFN is sparse or dense by decoder_sparse_step and mlp_only_layers (Qwen).
std::vector<LayerSpec> ReadSparseAndDenseLayers(ConfigFields& config, int num_layers,
                                                const AttentionSpec& attention, const MoeSpec& moe,
                                                int dense_intermediate_size);

}  // namespace convene::model
