#include "model/deepseek_config.h"

#include <fmt/format.h>

#include <cmath>

#include "base/quote.h"
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/quantization.h"
#include "model/rope_config.h"

namespace convene::model {
namespace {

AttentionSpec ReadAttention(ConfigFields& config, const DeepseekDefaults& defaults) {
  LatentSpec latent;
  // Absent is not null: only null means queries without a latent.
  latent.query_rank =
      config.IsNull("q_lora_rank") ? 0 : config.Integer("q_lora_rank", 1536, kHidden);
  latent.kv_rank = config.Integer("kv_lora_rank", 512, kHidden);
  latent.nope_dim = config.Integer("qk_nope_head_dim", 128, kHeadDim);
  latent.rope_dim = config.Integer("qk_rope_head_dim", 64, kHeadDim);
  latent.interleaved_rope = defaults.interleaved_rope;
  if (latent.rope_dim % 2 != 0) {
    config.Fail(fmt::format("qk_rope_head_dim {} must be even", latent.rope_dim));
  }
  AttentionSpec attention;
  attention.num_heads = config.Integer("num_attention_heads", defaults.num_heads, kHeads);
  attention.num_kv_heads = config.Integer("num_key_value_heads", attention.num_heads, kHeads);
  if (attention.num_kv_heads != attention.num_heads) {
    config.Fail(fmt::format("num_key_value_heads {} must be num_attention_heads {}",
                            attention.num_kv_heads, attention.num_heads));
  }
  attention.head_dim = latent.nope_dim + latent.rope_dim;
  attention.value_dim = config.Integer("v_head_dim", 128, kHeadDim);
  attention.qkv_bias = config.Boolean("attention_bias", false);
  attention.output_bias = attention.qkv_bias;
  attention.latent = latent;
  return attention;
}

bool IsDense(int layer, int num_dense_layers, int moe_layer_freq) {
  return layer < num_dense_layers || layer % moe_layer_freq != 0;
}

}  // namespace

Result<ModelSpec> ReadDeepseek(ConfigFields& config, const DeepseekDefaults& defaults,
                               MoeSpec moe) {
  ModelSpec spec;
  spec.vocab_size = config.Integer("vocab_size", defaults.vocab_size, kVocabulary);
  spec.hidden_size = config.Integer("hidden_size", defaults.hidden_size, kHidden);
  const int num_layers = config.Integer("num_hidden_layers", defaults.num_layers, kLayers);
  spec.norm.epsilon = static_cast<float>(config.Number("rms_norm_eps", 1e-6, kNormEpsilon));
  spec.tied_embeddings = config.Boolean("tie_word_embeddings", false);
  CheckActivation(config, config.Text("hidden_act", "silu"));
  if (config.Boolean("mlp_bias", false)) config.Fail("mlp_bias is not supported");

  AttentionSpec attention = ReadAttention(config, defaults);
  // Weights have a matrix for each head (weights::LatentWeights).
  if (int64_t{attention.num_heads} * num_layers > kMaxLatentHeadsInModel) {
    config.Fail(fmt::format(
        "{} heads in each of {} layers are more than the {} heads that a model with latent "
        "attention may have; reduce num_attention_heads or num_hidden_layers",
        attention.num_heads, num_layers, kMaxLatentHeadsInModel));
  }
  const int max_positions =
      config.Integer("max_position_embeddings", defaults.max_positions, kPositions);
  spec.rope = ReadRope(
      config,
      {.theta = 1e4, .head_dim = attention.latent->rope_dim, .max_positions = max_positions});
  spec.max_positions = DeclaredContext(spec.rope, max_positions);
  attention.scale = static_cast<float>(spec.rope.score_factor / std::sqrt(attention.head_dim));

  const int dense_width =
      config.Integer("intermediate_size", defaults.intermediate_size, kIntermediate);
  moe.intermediate_size =
      config.Integer("moe_intermediate_size", defaults.moe_intermediate_size, kIntermediate);
  const int num_shared =
      config.IsNull("n_shared_experts")
          ? 0
          : config.Integer("n_shared_experts", defaults.num_shared_experts, {0, kExpertCount.max});
  const int64_t shared_width = int64_t{num_shared} * moe.intermediate_size;
  if (shared_width > kIntermediate.max) {
    config.Fail(
        fmt::format("{} shared experts of {} are too many", num_shared, moe.intermediate_size));
  }
  moe.shared_intermediate_size = static_cast<int>(shared_width);
  CheckExperts(config, moe, num_layers);
  const int num_dense =
      config.Integer("first_k_dense_replace", defaults.num_dense_layers, {0, INT32_MAX});
  const int frequency = config.Integer("moe_layer_freq", 1, {1, INT32_MAX});
  const Storage storage = ReadStorage(config);
  const int num_extra_layers =
      config.Integer({"num_nextn_predict_layers", "num_mtp_layers"}, 0, {0, 64});
  if (!config.ok()) return config.error();

  spec.layers.resize(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    spec.layers[layer].attention = attention;
    if (moe.num_experts == 0 || IsDense(layer, num_dense, frequency)) {
      spec.layers[layer].dense_intermediate_size = dense_width;
    } else {
      spec.layers[layer].moe = moe;
    }
  }
  BindDecoder(spec, {.shared = "shared_experts", .storage = storage});
  // Layers that predict a second token follow the model's own.
  for (int layer = num_layers; layer < num_layers + num_extra_layers; ++layer) {
    spec.ignored_prefixes.push_back(fmt::format("model.layers.{}.", layer));
  }
  return spec;
}

int ReadRoutedExperts(ConfigFields& config, std::string_view alias, int fallback) {
  if (config.IsNull("n_routed_experts") && !config.Has(alias)) return 0;
  return config.Integer({"n_routed_experts", alias}, fallback, kExpertsOrNone);
}

void ReadExpertGroups(ConfigFields& config, int num_expert_groups, int top_expert_groups,
                      MoeSpec& moe) {
  if (moe.num_experts == 0) return;
  moe.num_expert_groups = config.Integer("n_group", num_expert_groups, kExpertCount);
  moe.top_expert_groups = config.Integer("topk_group", top_expert_groups, kExpertCount);
  if (moe.num_experts % moe.num_expert_groups != 0) {
    config.Fail(fmt::format("{} experts cannot be divided into {} groups", moe.num_experts,
                            moe.num_expert_groups));
    moe.num_expert_groups = 1;
  }
  if (moe.top_expert_groups > moe.num_expert_groups) {
    config.Fail(fmt::format("topk_group {} is more than the {} groups there are",
                            moe.top_expert_groups, moe.num_expert_groups));
  } else if (int64_t{moe.top_expert_groups} * (moe.num_experts / moe.num_expert_groups) <
             moe.top_k) {
    config.Fail(fmt::format("{} groups of {} experts have fewer than the {} experts of a token",
                            moe.top_expert_groups, moe.num_experts / moe.num_expert_groups,
                            moe.top_k));
  }
}

void CheckText(ConfigFields& config, std::string_view field, std::string_view expected) {
  const std::string value = config.Text(field, expected);
  if (value == expected) return;
  config.Fail(fmt::format("{} {} is not supported; it must be {}", field, Quote(value), expected));
}

}  // namespace convene::model
