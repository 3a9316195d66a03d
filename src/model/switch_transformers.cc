// Switch Transformers (Fedus et al., 2021, arXiv 2101.03961; transformers models/
// switch_transformers): a T5 encoder and decoder whose feed-forward blocks are, in every few
// layers, one of many experts of two matrices.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "model/config_limits.h"
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"

namespace convene::model {
namespace {

constexpr ActivationSpec kRelu = {.kind = Activation::kRelu};

// Layers of one stack, every `step`-th sparse, beginning with the second; of step 0 none.
std::vector<LayerSpec> Layers(int num_layers, int step, const AttentionSpec& attention,
                              const MoeSpec& moe, int dense_intermediate_size) {
  std::vector<LayerSpec> layers(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    layers[layer].attention = attention;
    if (step == 1 || (step > 0 && layer % step == 1)) {
      layers[layer].moe = moe;
    } else {
      layers[layer].dense_intermediate_size = dense_intermediate_size;
      layers[layer].dense_activation = kRelu;
    }
  }
  return layers;
}

int SparseStep(ConfigFields& config, std::string_view stack, int num_layers) {
  const int num_sparse =
      config.Integer(fmt::format("num_sparse_{}_layers", stack), 3, {0, kLayers.max});
  const int inferred = num_sparse > 0 ? num_layers / num_sparse : num_layers;
  return config.Integer(fmt::format("{}_sparse_step", stack), inferred, {0, INT32_MAX});
}

class StackBinder {
 public:
  StackBinder(ModelSpec& spec, bool encoder)
      : spec_(spec), encoder_(encoder), stack_(encoder ? "encoder" : "decoder") {}

  void Bind() {
    const std::vector<LayerSpec>& layers = encoder_ ? spec_.encoder_layers : spec_.layers;
    for (int layer = 0; layer < std::ssize(layers); ++layer) BindLayer(layers[layer], layer);
    layer_ = -1;
    Vector(TensorRole::kFinalNorm, stack_ + ".final_layer_norm.weight");
  }

 private:
  void BindLayer(const LayerSpec& layer, int index) {
    layer_ = index;
    prefix_ = fmt::format("{}.block.{}.layer.", stack_, index);
    using enum TensorRole;
    Vector(kAttentionNorm, prefix_ + "0.layer_norm.weight");
    BindAttention("0.SelfAttention", layer.attention, {kQuery, kKey, kValue, kAttentionOutput});
    if (index == 0) {
      layer_ = -1;
      Matrix(kRelativeBias, -1, prefix_ + "0.SelfAttention.relative_attention_bias.weight",
             spec_.relative_bias->num_buckets, layer.attention.num_heads);
      layer_ = index;
    }
    if (layer.cross_attention) {
      Vector(kCrossNorm, prefix_ + "1.layer_norm.weight");
      BindAttention("1.EncDecAttention", *layer.cross_attention,
                    {kCrossQuery, kCrossKey, kCrossValue, kCrossOutput});
    }
    const std::string ffn = prefix_ + (layer.cross_attention ? "2." : "1.");
    Vector(kFfnNorm, ffn + "layer_norm.weight");
    if (!layer.moe) {
      BindFfn(-1, ffn + "mlp.", kDenseUp, kDenseDown, layer.dense_intermediate_size);
      return;
    }
    Matrix(kRouter, -1, ffn + "mlp.router.classifier.weight", layer.moe->num_experts,
           spec_.hidden_size);
    if (layer.moe->router_bias) {
      BindVector(spec_, kRouterBias, layer_, ffn + "mlp.router.classifier.bias",
                 layer.moe->num_experts);
      spec_.tensors.back().encoder = encoder_;
    }
    for (int expert = 0; expert < layer.moe->num_experts; ++expert) {
      BindFfn(expert, fmt::format("{}mlp.experts.expert_{}.", ffn, expert), kExpertUp, kExpertDown,
              layer.moe->intermediate_size);
    }
  }

  struct AttentionRoles {
    TensorRole query, key, value, output;
  };
  void BindAttention(std::string_view name, const AttentionSpec& shape, AttentionRoles roles) {
    const int hidden = spec_.hidden_size;
    const auto bind = [&](TensorRole role, std::string_view matrix, int64_t rows, int64_t cols) {
      Matrix(role, -1, fmt::format("{}{}.{}.weight", prefix_, name, matrix), rows, cols);
    };
    bind(roles.query, "q", shape.query_dim(), hidden);
    bind(roles.key, "k", shape.kv_dim(), hidden);
    bind(roles.value, "v", shape.value_width(), hidden);
    bind(roles.output, "o", hidden, shape.output_dim());
  }

  void BindFfn(int expert, const std::string& prefix, TensorRole up, TensorRole down, int width) {
    Matrix(up, expert, prefix + "wi.weight", width, spec_.hidden_size);
    Matrix(down, expert, prefix + "wo.weight", spec_.hidden_size, width);
  }

  void Matrix(TensorRole role, int expert, std::string name, int64_t rows, int64_t cols) {
    BindMatrix(spec_, role, layer_, expert, std::move(name), rows, cols);
    spec_.tensors.back().encoder = encoder_;
  }
  void Vector(TensorRole role, std::string name) {
    BindVector(spec_, role, layer_, std::move(name), spec_.hidden_size);
    spec_.tensors.back().encoder = encoder_;
  }

  ModelSpec& spec_;
  bool encoder_;
  std::string stack_;
  std::string prefix_;
  int layer_ = -1;
};

// Tied: one matrix for both stacks and the head. Otherwise each stack may have its own, or both the
// shared one.
void BindTensors(ModelSpec& spec) {
  const auto embedding = [&](bool encoder, std::string name) {
    BindMatrix(spec, TensorRole::kEmbedding, -1, -1, std::move(name), spec.vocab_size,
               spec.hidden_size);
    spec.tensors.back().encoder = encoder;
  };
  constexpr const char* kShared = "shared.weight";
  if (spec.tied_embeddings) {
    embedding(false, kShared);
    spec.ignored_prefixes = {"encoder.embed_tokens.", "decoder.embed_tokens.", "lm_head."};
  } else {
    embedding(true, "encoder.embed_tokens.weight");
    spec.tensors.back().fallback_name = kShared;
    embedding(false, "decoder.embed_tokens.weight");
    spec.tensors.back().fallback_name = kShared;
    BindMatrix(spec, TensorRole::kHead, -1, -1, "lm_head.weight", spec.vocab_size,
               spec.hidden_size);
    spec.ignored_prefixes = {"shared."};
  }
  StackBinder(spec, /*encoder=*/true).Bind();
  StackBinder(spec, /*encoder=*/false).Bind();
}

}  // namespace

Result<ModelSpec> ReadSwitchTransformers(ConfigFields& config) {
  ModelSpec spec;
  spec.vocab_size = config.Integer("vocab_size", 32128, kVocabulary);
  spec.hidden_size = config.Integer({"d_model", "hidden_size"}, 768, kHidden);
  const int num_layers = config.Integer({"num_layers", "num_hidden_layers"}, 12, kLayers);
  const int num_decoder_layers = config.Integer(
      "num_decoder_layers", config.IsNull("num_decoder_layers") ? num_layers : 12, kLayers);
  spec.norm.epsilon = static_cast<float>(config.Number("layer_norm_epsilon", 1e-6, kNormEpsilon));
  spec.tied_embeddings = config.Boolean("tie_word_embeddings", true);
  if (spec.tied_embeddings) {
    spec.logits_scale = static_cast<float>(1 / std::sqrt(double(spec.hidden_size)));
  }
  // Distances beyond the table's are alike, so no context is too long.
  spec.max_positions = static_cast<int>(kPositions.max);
  spec.relative_bias = {
      .num_buckets = config.Integer("relative_attention_num_buckets", 32, {4, 1 << 16}),
      .max_distance = config.Integer("relative_attention_max_distance", 128, {2, 1 << 16})};
  if (spec.relative_bias->max_distance <= spec.relative_bias->num_buckets / 2) {
    config.Fail(
        fmt::format("relative_attention_max_distance {} must be more than half of the {} buckets",
                    spec.relative_bias->max_distance, spec.relative_bias->num_buckets));
  }
  const std::string activation =
      config.Text("dense_act_fn", config.Text("feed_forward_proj", "relu"));
  if (activation != "relu" || config.Boolean("is_gated_act", false)) {
    config.Fail(fmt::format("the activation {} is not supported; it must be relu, without a gate",
                            Quote(activation)));
  }

  AttentionSpec attention;
  attention.num_heads = config.Integer({"num_heads", "num_attention_heads"}, 12, kHeads);
  attention.num_kv_heads = attention.num_heads;
  attention.head_dim = config.Integer("d_kv", 64, kHeadDim);
  attention.value_dim = attention.head_dim;
  attention.scale = 1;
  attention.relative_bias = true;
  AttentionSpec in_encoder = attention;
  in_encoder.causal = false;
  AttentionSpec cross = in_encoder;
  cross.relative_bias = false;

  const int dense_width = config.Integer("d_ff", 2048, kIntermediate);
  MoeSpec moe = {.num_experts = config.Integer("num_experts", 8, kExpertCount),
                 .top_k = 1,
                 .intermediate_size = dense_width,
                 .activation = kRelu,
                 .router_bias = config.Boolean("router_bias", false)};
  CheckExperts(config, moe, num_layers + num_decoder_layers);
  const int encoder_step = SparseStep(config, "encoder", num_layers);
  const int decoder_step = SparseStep(config, "decoder", num_decoder_layers);
  spec.decoder_start_token =
      config.Integer("decoder_start_token_id",
                     config.Integer("pad_token_id", 0, {0, kVocabulary.max}), {0, kVocabulary.max});
  if (spec.decoder_start_token >= spec.vocab_size) {
    config.Fail(fmt::format("decoder_start_token_id {} is not in the vocabulary of {}",
                            spec.decoder_start_token, spec.vocab_size));
  }
  if (!config.ok()) return config.error();

  spec.encoder_layers = Layers(num_layers, encoder_step, in_encoder, moe, dense_width);
  spec.layers = Layers(num_decoder_layers, decoder_step, attention, moe, dense_width);
  for (LayerSpec& layer : spec.layers) layer.cross_attention = cross;
  BindTensors(spec);
  return spec;
}

// Both stacks of an encoder-decoder, with as many sparse layers among so many as before.
void SetSwitchTransformersLayers(nlohmann::json& config, int num_layers) {
  for (const std::string stack : {"encoder", "decoder"}) {
    const std::string count = stack == "encoder" ? "num_layers" : "num_decoder_layers";
    const std::string sparse = "num_sparse_" + stack + "_layers";
    const std::string step = stack + "_sparse_step";
    const auto is_count = [&](const std::string& name) {
      return config.contains(name) && config[name].is_number_integer() && config[name] > 0;
    };
    if (!config.contains(step) && is_count(count) && is_count(sparse)) {
      config[step] = config[count].get<int64_t>() / config[sparse].get<int64_t>();
    }
    config[count] = num_layers;
  }
}

}  // namespace convene::model
