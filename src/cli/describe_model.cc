#include "cli/describe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/units.h"

namespace convene::cli {
namespace {

using model::AttentionSpec;
using model::LayerSpec;
using model::ModelSpec;
using model::MoeSpec;

const LayerSpec* FirstLayer(const ModelSpec& spec, bool sparse) {
  for (const auto* layers : {&spec.layers, &spec.encoder_layers}) {
    for (const LayerSpec& layer : *layers) {
      if (layer.moe.has_value() == sparse) return &layer;
    }
  }
  return nullptr;
}

std::string DescribeLayers(const std::vector<LayerSpec>& layers) {
  const auto is_sparse = [](const LayerSpec& layer) { return layer.moe.has_value(); };
  const auto num_layers = std::ssize(layers);
  const auto num_sparse = std::count_if(layers.begin(), layers.end(), is_sparse);
  if (num_sparse == num_layers) return fmt::format("{}, all with experts", num_sparse);
  if (num_sparse == 0) return fmt::format("{}, all dense", num_layers);
  const auto num_dense = num_layers - num_sparse;
  const bool is_leading = std::all_of(layers.begin() + num_dense, layers.end(), is_sparse);
  return fmt::format("{}, {} with experts {} {} dense", num_layers, num_sparse,
                     is_leading ? "after" : "and", num_dense);
}

// What keys and values are made from, and what of it is cached.
std::string DescribeLatents(const AttentionSpec& attention) {
  if (!attention.latent) return "";
  const model::LatentSpec& latent = *attention.latent;
  const auto count = [](int value) { return FormatCount(static_cast<uint64_t>(value)); };
  std::string text = count(latent.kv_rank) + " for keys and values";
  if (latent.query_rank > 0) text += fmt::format(", {} for queries", count(latent.query_rank));
  return text + fmt::format("; cached are {} + {} per token and layer", count(latent.kv_rank),
                            latent.rope_dim);
}

// What the scores are multiplied with where it is not head_dim^-1/2. RoPE's part is told there.
std::string DescribeScale(const ModelSpec& spec, const AttentionSpec& attention) {
  const double usual = spec.rope.score_factor / std::sqrt(attention.head_dim);
  if (std::abs(attention.scale - usual) < 1e-4 * usual) return "";
  if (attention.scale == 1) return ", scores not scaled";
  return fmt::format(", scores times {:.4g}", attention.scale);
}

std::string DescribeAttention(const ModelSpec& spec, const AttentionSpec& attention) {
  std::string text;
  if (attention.latent) {
    text =
        fmt::format("{} heads of {} + {} rotated, values of {}, from latents", attention.num_heads,
                    attention.latent->nope_dim, attention.latent->rope_dim, attention.value_dim);
  } else {
    text = fmt::format("{} heads of {}", attention.num_heads, attention.head_dim);
    text += attention.num_kv_heads == attention.num_heads
                ? ", keys and values of their own"
                : fmt::format(" share {} of keys and values", attention.num_kv_heads);
  }
  if (attention.qk_norm == model::QkNorm::kPerHead) text += ", q and k normed per head";
  if (attention.qk_norm == model::QkNorm::kWholeProjection) text += ", q and k normed";
  if (attention.clip_qkv) text += fmt::format(", clipped to {:g}", *attention.clip_qkv);
  if (attention.qkv_bias) text += ", biases";
  if (attention.sinks) text += ", sinks";
  return text + DescribeScale(spec, attention);
}

std::string DescribeWindow(const ModelSpec& spec) {
  std::set<int> windows;
  int num_layers = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention.window == 0) continue;
    windows.insert(layer.attention.window);
    ++num_layers;
  }
  return num_layers == 0 ? ""
                         : fmt::format("{} tokens in {} of {} layers",
                                       FormatCount(static_cast<uint64_t>(*windows.begin())),
                                       num_layers, spec.num_layers());
}

std::string DescribeWeights(const MoeSpec& moe) {
  const bool sigmoid = moe.score == model::RouterScore::kSigmoid;
  switch (moe.router_norm) {
    case model::RouterNorm::kNone:
      return sigmoid ? "weighted by sigmoid" : "weighted by probability";
    case model::RouterNorm::kSum:
      return fmt::format("weights{} sum to {:g}", sigmoid ? " by sigmoid" : "", moe.routed_scale);
    case model::RouterNorm::kPNorm:
      return fmt::format("weights have {:g}-norm 1", moe.router_norm_p);
  }
  return "";
}

std::string DescribeActivation(const model::ActivationSpec& activation) {
  switch (activation.kind) {
    case model::Activation::kSiluMul:
      return "";
    case model::Activation::kClampedSwiglu:
      return fmt::format(", SwiGLU clamped at {:g}", activation.limit);
    case model::Activation::kRelu:
      return ", ReLU without a gate";
  }
  return "";
}

std::string DescribeExperts(const MoeSpec& moe) {
  std::string text =
      fmt::format("{} of width {}, {} per token", moe.num_experts,
                  FormatCount(static_cast<uint64_t>(moe.intermediate_size)), moe.top_k);
  if (moe.num_expert_groups > moe.top_expert_groups) {
    text += fmt::format(" of {} of {} expert groups", moe.top_expert_groups, moe.num_expert_groups);
  }
  if (moe.correction_bias) text += ", chosen with a bias per expert";
  text += ", " + DescribeWeights(moe);
  if (moe.router_norm != model::RouterNorm::kSum && moe.routed_scale != 1) {
    text += fmt::format(" times {:g}", moe.routed_scale);
  }
  text += DescribeActivation(moe.activation);
  if (moe.expert_bias) text += ", biases";
  return text;
}

std::string DescribeScales(const ModelSpec& spec) {
  std::string text;
  const auto add = [&](std::string_view name, float scale) {
    if (scale == 1) return;
    text += fmt::format("{}{} times {:.4g}", text.empty() ? "" : ", ", name, scale);
  };
  add("embeddings", spec.embedding_scale);
  add("residuals", spec.residual_scale);
  add("logits", spec.logits_scale);
  return text;
}

std::string DescribeRopeScaling(const model::RopeSpec& rope) {
  switch (rope.scaling) {
    case model::RopeScaling::kNone:
      return "";
    case model::RopeScaling::kLinear:
      return fmt::format(", linear scaling by {:g}", rope.factor);
    case model::RopeScaling::kDynamic:
      return fmt::format(", dynamic scaling by {:g} beyond {} tokens", rope.factor,
                         FormatCount(static_cast<uint64_t>(rope.original_max_positions)));
    case model::RopeScaling::kYarn:
      return fmt::format(", YaRN by {:g} from {} tokens", rope.factor,
                         FormatCount(static_cast<uint64_t>(rope.original_max_positions)));
    case model::RopeScaling::kLlama3:
      return fmt::format(", Llama 3 scaling by {:g} from {} tokens", rope.factor,
                         FormatCount(static_cast<uint64_t>(rope.original_max_positions)));
  }
  return "";
}

std::string DescribeRope(const ModelSpec& spec) {
  const model::RopeSpec& rope = spec.rope;
  if (rope.rotary_dim == 0) return "";
  std::string text = fmt::format("base {}", FormatCount(static_cast<uint64_t>(rope.theta)));
  text += DescribeRopeScaling(rope);
  if (rope.score_factor != 1) text += fmt::format(", scores times {:.4g}", rope.score_factor);
  return text;
}

std::string DescribeRelativeBias(const ModelSpec& spec) {
  if (!spec.relative_bias) return "";
  return fmt::format("a bias by distance in {} buckets, one of them from {} tokens on",
                     spec.relative_bias->num_buckets, spec.relative_bias->max_distance);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DescribeModel(const ModelSpec& spec) {
  const auto count = [](int value) { return FormatCount(static_cast<uint64_t>(value)); };
  const bool has_encoder = spec.has_encoder();
  std::vector<std::pair<std::string, std::string>> lines = {
      {"family", spec.family},
      {"encoder", has_encoder ? DescribeLayers(spec.encoder_layers) : ""},
      {has_encoder ? "decoder" : "layers", DescribeLayers(spec.layers)},
      {"hidden size", count(spec.hidden_size)},
      {"vocabulary", count(spec.vocab_size) + (spec.tied_embeddings ? ", head tied to it" : "")},
      // A bias by distance has no last position.
      {"context", spec.relative_bias ? "any length" : count(spec.max_positions) + " tokens"},
      {"attention", DescribeAttention(spec, spec.layers.front().attention)},
      {"latents", DescribeLatents(spec.layers.front().attention)},
      {"window", DescribeWindow(spec)},
  };
  if (const LayerSpec* sparse = FirstLayer(spec, true)) {
    lines.emplace_back("experts", DescribeExperts(*sparse->moe));
    if (sparse->moe->shared_intermediate_size > 0) {
      lines.emplace_back("shared expert",
                         fmt::format("width {}{}", count(sparse->moe->shared_intermediate_size),
                                     sparse->moe->shared_expert_gate ? ", gated" : ""));
    }
  }
  if (const LayerSpec* dense = FirstLayer(spec, false)) {
    lines.emplace_back("dense FFN", "width " + count(dense->dense_intermediate_size) +
                                        DescribeActivation(dense->dense_activation));
  }
  lines.emplace_back("norm",
                     fmt::format("{}, epsilon {:g}",
                                 spec.norm.kind == model::NormKind::kRms ? "RMSNorm" : "LayerNorm",
                                 spec.norm.epsilon));
  lines.emplace_back("scales", DescribeScales(spec));
  lines.emplace_back("RoPE", DescribeRope(spec));
  lines.emplace_back("positions", DescribeRelativeBias(spec));
  std::erase_if(lines, [](const auto& line) { return line.second.empty(); });
  return lines;
}

}  // namespace convene::cli
