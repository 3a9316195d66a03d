#include "model/decoder_config.h"

#include <cmath>
#include <set>

#include "base/quote.h"
#include "model/rope_config.h"

namespace convene::model {

DecoderConfig ReadDecoder(ConfigFields& config, const DecoderDefaults& defaults) {
  DecoderConfig decoder;
  decoder.num_layers = config.Integer("num_hidden_layers", defaults.num_layers, kLayers);

  ModelSpec& spec = decoder.spec;
  spec.vocab_size = config.Integer("vocab_size", defaults.vocab_size, kVocabulary);
  spec.hidden_size = config.Integer("hidden_size", defaults.hidden_size, kHidden);
  spec.norm.epsilon =
      static_cast<float>(config.Number("rms_norm_eps", defaults.norm_epsilon, kNormEpsilon));
  spec.tied_embeddings = config.Boolean("tie_word_embeddings", false);
  CheckActivation(config, config.Text("hidden_act", "silu"));

  AttentionSpec& attention = decoder.attention;
  attention.num_heads = config.Integer("num_attention_heads", defaults.num_heads, kHeads);
  const bool as_many_as_heads = defaults.num_kv_heads == 0 || config.IsNull("num_key_value_heads");
  attention.num_kv_heads =
      config.Integer("num_key_value_heads",
                     as_many_as_heads ? attention.num_heads : defaults.num_kv_heads, kHeads);
  const int even_share = spec.hidden_size / attention.num_heads;
  attention.head_dim = config.Integer(
      "head_dim",
      defaults.head_dim == 0 || config.IsNull("head_dim") ? even_share : defaults.head_dim,
      kHeadDim);
  FinishAttention(config, attention);

  const int max_positions =
      config.Integer("max_position_embeddings", defaults.max_positions, kPositions);
  spec.rope = ReadRope(config, {.theta = defaults.rope_theta,
                                .head_dim = attention.head_dim,
                                .max_positions = max_positions});
  spec.max_positions = DeclaredContext(spec.rope, max_positions);
  return decoder;
}

void FinishAttention(ConfigFields& config, AttentionSpec& attention) {
  if (attention.num_heads % attention.num_kv_heads != 0) {
    config.Fail(fmt::format("{} attention heads cannot share {} key/value heads evenly",
                            attention.num_heads, attention.num_kv_heads));
  }
  if (attention.head_dim < kHeadDim.min || attention.head_dim > kHeadDim.max ||
      attention.head_dim % 2 != 0) {
    config.Fail(fmt::format(
        "a head dimension of {} is not supported; it must be an even number from {} to {}",
        attention.head_dim, kHeadDim.min, kHeadDim.max));
    return;
  }
  attention.value_dim = attention.head_dim;
  attention.scale = static_cast<float>(1.0 / std::sqrt(attention.head_dim));
}

int ReadWindow(ConfigFields& config, int fallback) {
  if (config.IsNull("sliding_window")) return 0;
  const int window = config.Integer("sliding_window", fallback, {0, kPositions.max});
  // transformers takes the field, and then fails at the first token.
  if (window == 0 && config.Has("sliding_window")) {
    config.Fail("sliding_window is 0, a window that sees nothing; null stands for no window");
  }
  return window;
}

void CheckActivation(ConfigFields& config, std::string_view name) {
  if (name == "silu" || name == "swish") return;
  config.Fail(fmt::format("the activation {} is not supported; it must be silu", Quote(name)));
}

void CheckExperts(ConfigFields& config, const MoeSpec& moe, int num_layers) {
  if (moe.num_experts > 0 && moe.top_k > moe.num_experts) {
    config.Fail(fmt::format("{} experts per token are more than the {} experts there are",
                            moe.top_k, moe.num_experts));
  }
  if (int64_t{moe.num_experts} * num_layers > kMaxExpertsInModel) {
    config.Fail(fmt::format(
        "{} experts in each of {} layers are more than the {} experts that a model may have",
        moe.num_experts, num_layers, kMaxExpertsInModel));
  }
}

std::vector<LayerSpec> ReadSparseAndDenseLayers(ConfigFields& config, int num_layers,
                                                const AttentionSpec& attention, const MoeSpec& moe,
                                                int dense_intermediate_size) {
  const int sparse_step = config.Integer("decoder_sparse_step", 1, {1, INT32_MAX});
  const std::vector<int> dense_list = config.Integers("mlp_only_layers", {0, num_layers - 1});
  const std::set<int> dense_layers(dense_list.begin(), dense_list.end());
  std::vector<LayerSpec> layers(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool sparse =
        moe.num_experts > 0 && (layer + 1) % sparse_step == 0 && !dense_layers.contains(layer);
    layers[layer].attention = attention;
    if (sparse) {
      layers[layer].moe = moe;
    } else {
      layers[layer].dense_intermediate_size = dense_intermediate_size;
    }
  }
  return layers;
}

}  // namespace convene::model
