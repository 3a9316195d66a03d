#include "weights/named_weights.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "base/check.h"

namespace convene::weights {

using model::TensorRole;

std::vector<NamedMatrix> Matrices(const ModelWeights& weights) {
  std::vector<NamedMatrix> all;
  const auto add = [&](std::string name, const kernels::PackedMatrix& matrix) {
    all.push_back({std::move(name), &matrix});
  };
  // Of the same page as the one before it.
  const auto add_to_page = [&](std::string name, const kernels::PackedMatrix& matrix) {
    all.back().ends_page = false;
    add(std::move(name), matrix);
  };
  const auto add_ffn = [&](const std::string& name, const FfnWeights& ffn) {
    add(name + ".up", ffn.up);
    add_to_page(name + ".down", ffn.down);
  };
  const auto add_attention = [&](const LayerWeights& layer, const std::string& prefix) {
    if (layer.qkv.rows == 0) return;  // other ranks have it
    add(prefix + "qkv", layer.qkv);
    if (layer.latent) {
      const LatentWeights& latent = *layer.latent;
      const bool has_query_up = latent.query_up.rows > 0;
      if (has_query_up) add(prefix + "query_up", latent.query_up);
      has_query_up ? add_to_page(prefix + "key_up", latent.key_up)
                   : add(prefix + "key_up", latent.key_up);
      add_to_page(prefix + "value_up", latent.value_up);
      for (size_t head = 0; head < latent.query_in.size(); ++head) {
        add_to_page(fmt::format("{}query_in.{}", prefix, head), latent.query_in[head]);
      }
      add_to_page(prefix + "output", layer.output);
    } else {
      add(prefix + "output", layer.output);
    }
    if (!layer.cross) return;
    add(prefix + "cross_query", layer.cross->query);
    add(prefix + "cross_kv", layer.cross->kv);
    add(prefix + "cross_output", layer.cross->output);
  };
  // An embedding that is all of the head, too, is named after that.
  const bool is_in_embedding = weights.head_is_in_embedding();
  const bool is_embedding = is_in_embedding && weights.head.rows == weights.embedding.rows;
  if (weights.head.rows > 0 && !is_in_embedding) add("head", weights.head);
  if (weights.embedding.rows > 0) add(is_embedding ? "head" : "embedding", weights.embedding);
  const auto add_layer = [&](const LayerWeights& layer, const std::string& prefix) {
    add_attention(layer, prefix);
    if (layer.dense) add_ffn(prefix + "dense", *layer.dense);
    if (!layer.moe) return;
    if (layer.moe->router.rows > 0) add(prefix + "router", layer.moe->router);
    for (size_t expert = 0; expert < layer.moe->experts.size(); ++expert) {
      add_ffn(fmt::format("{}experts.{}", prefix, layer.moe->first_expert + expert),
              layer.moe->experts[expert]);
    }
    if (layer.moe->shared) add_ffn(prefix + "shared", *layer.moe->shared);
  };
  if (weights.encoder) {
    if (!weights.spec.tied_embeddings) add("encoder.embedding", weights.encoder->embedding);
    for (size_t i = 0; i < weights.encoder->layers.size(); ++i) {
      add_layer(weights.encoder->layers[i], fmt::format("encoder.layers.{}.", i));
    }
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    add_layer(weights.layers[i], fmt::format("layers.{}.", i));
  }
  return all;
}

void SetPlaces(std::span<const std::byte* const> places, ModelWeights* weights) {
  const std::vector<NamedMatrix> matrices = Matrices(*weights);
  CHECK(places.size() == matrices.size(), "{} places of {}", places.size(), matrices.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    const_cast<kernels::PackedMatrix*>(matrices[i].matrix)->data = places[i];
  }
  weights->PlaceHeadInEmbedding();
  if (weights->encoder && weights->spec.tied_embeddings) {
    weights->encoder->embedding = weights->embedding;
  }
}

namespace {

// Lists the norms and biases of a model; those that it does not have are left out.
class VectorList {
 public:
  VectorList(const model::ModelSpec& spec, const Share& parts)
      : spec_(spec), parts_(parts), is_whole_(parts == Share{}) {}

  std::vector<NamedVector>& all() { return all_; }

  void AddStack(const std::vector<model::LayerSpec>& layers, bool encoder,
                std::vector<float>& final_norm, std::vector<float>& relative_bias,
                std::vector<LayerWeights>& weights) {
    encoder_ = encoder;
    stack_ = encoder ? "encoder." : "";
    Add("final_norm", -1, final_norm, {TensorRole::kFinalNorm});
    // A row per bucket, with a value per head.
    AddCut("relative_bias", -1, relative_bias, {TensorRole::kRelativeBias},
           layers.empty() ? 0 : layers.front().attention.num_heads, /*each_row=*/true);
    for (int layer = 0; layer < std::ssize(layers); ++layer) {
      AddLayer(layers[layer], layer, weights[layer]);
    }
  }

 private:
  // As large as the model's tensors say.
  void Add(const std::string& name, int layer, std::vector<float>& values,
           std::initializer_list<TensorRole> roles) {
    AddSized(name, values, SizeOf(layer, roles).elements);
  }

  // Likewise, or of parts so many values, of each row of the tensor or of all of it.
  void AddCut(const std::string& name, int layer, std::vector<float>& values,
              std::initializer_list<TensorRole> roles, int64_t size_of_part,
              bool each_row = false) {
    const Size whole = SizeOf(layer, roles);
    if (is_whole_ || whole.elements == 0) return AddSized(name, values, whole.elements);
    AddSized(name, values, each_row ? size_of_part * whole.rows : size_of_part);
  }

  struct Size {
    int64_t elements = 0;
    int64_t rows = 0;
  };
  Size SizeOf(int layer, std::initializer_list<TensorRole> roles) const {
    Size size;
    for (const model::TensorBinding& binding : spec_.tensors) {
      if (binding.layer != layer || binding.encoder != encoder_) continue;
      for (const TensorRole role : roles) {
        if (binding.role != role) continue;
        size.elements += binding.rows * binding.cols;
        size.rows += binding.rows;
      }
    }
    return size;
  }

  void AddLayer(const model::LayerSpec& spec, int i, LayerWeights& layer) {
    using enum TensorRole;
    const std::string prefix = fmt::format("layers.{}.", i);
    Add(prefix + "attention_norm", i, layer.attention_norm, {kAttentionNorm});
    const bool latent_bias = spec.attention.latent && spec.attention.qkv_bias;
    if (latent_bias) {
      AddSized(prefix + "qkv_bias", layer.qkv_bias, layer.qkv.rows);
    } else {
      AddCut(prefix + "qkv_bias", i, layer.qkv_bias, {kQueryBias, kKeyBias, kValueBias},
             layer.qkv.rows);
    }
    if (!spec.attention.latent && spec.attention.qk_norm == model::QkNorm::kWholeProjection) {
      AddCut(prefix + "query_norm", i, layer.query_norm, {kQueryNorm}, spec.attention.query_dim());
      AddCut(prefix + "key_norm", i, layer.key_norm, {kKeyNorm}, spec.attention.kv_dim());
    } else {
      Add(prefix + "query_norm", i, layer.query_norm, {kQueryNorm, kQueryDownNorm});
      Add(prefix + "key_norm", i, layer.key_norm, {kKeyNorm, kKvDownNorm});
    }
    AddCut(prefix + "sinks", i, layer.sinks, {kSinks}, spec.attention.num_heads);
    if (parts_.attention_part == 0) {  // a bias of a sum over parts
      Add(prefix + "output_bias", i, layer.output_bias, {kAttentionOutputBias});
    }
    if (layer.cross) Add(prefix + "cross_norm", i, layer.cross->norm, {kCrossNorm});
    Add(prefix + "ffn_norm", i, layer.ffn_norm, {kFfnNorm});
    if (layer.moe) AddMoe(*spec.moe, prefix, *layer.moe);
  }

  void AddMoe(const model::MoeSpec& spec, const std::string& prefix, MoeWeights& moe) {
    if (spec.router_bias) AddSized(prefix + "router_bias", moe.router_bias, moe.router.rows);
    if (spec.correction_bias) {
      AddSized(prefix + "correction_bias", moe.correction_bias, spec.num_experts);
    }
    if (!spec.expert_bias) return;
    for (int expert = 0; expert < spec.num_experts; ++expert) {
      FfnWeights& ffn = moe.experts[expert];
      const std::string name = fmt::format("{}experts.{}", prefix, expert);
      AddSized(name + ".up_bias", ffn.up_bias, ffn.up.rows);
      if (parts_.expert_slice == 0) AddSized(name + ".down_bias", ffn.down_bias, ffn.down.rows);
    }
  }

  void AddSized(const std::string& name, std::vector<float>& values, int64_t size) {
    if (size > 0) all_.push_back({stack_ + name, &values, size});
  }

  const model::ModelSpec& spec_;
  const Share& parts_;
  bool is_whole_;
  bool encoder_ = false;
  std::string stack_;
  std::vector<NamedVector> all_;
};

}  // namespace

std::vector<NamedVector> Vectors(ModelWeights& weights, const Share& parts) {
  VectorList list(weights.spec, parts);
  if (weights.encoder) {
    EncoderWeights& encoder = *weights.encoder;
    list.AddStack(weights.spec.encoder_layers, true, encoder.final_norm, encoder.relative_bias,
                  encoder.layers);
  }
  list.AddStack(weights.spec.layers, false, weights.final_norm, weights.relative_bias,
                weights.layers);
  return list.all();
}

}  // namespace convene::weights
