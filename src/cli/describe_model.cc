#include "cli/describe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/units.h"

namespace convene::cli {
namespace {

using model::AttentionSpec;
using model::LayerSpec;
using model::ModelSpec;
using model::MoeSpec;

const LayerSpec* FirstLayer(const ModelSpec& spec, bool sparse) {
  const auto found = std::find_if(spec.layers.begin(), spec.layers.end(), [&](const auto& layer) {
    return layer.moe.has_value() == sparse;
  });
  return found == spec.layers.end() ? nullptr : &*found;
}

std::string DescribeLayers(const ModelSpec& spec) {
  const auto num_sparse = std::count_if(spec.layers.begin(), spec.layers.end(),
                                        [](const auto& layer) { return layer.moe.has_value(); });
  if (num_sparse == spec.num_layers()) return fmt::format("{}, all with experts", num_sparse);
  if (num_sparse == 0) return fmt::format("{}, all dense", spec.num_layers());
  return fmt::format("{}, {} with experts and {} dense", spec.num_layers(), num_sparse,
                     spec.num_layers() - num_sparse);
}

std::string DescribeAttention(const AttentionSpec& attention) {
  std::string text = fmt::format("{} heads of {}", attention.num_heads, attention.head_dim);
  text += attention.num_kv_heads == attention.num_heads
              ? ", keys and values of their own"
              : fmt::format(" share {} of keys and values", attention.num_kv_heads);
  if (attention.qk_norm == model::QkNorm::kPerHead) text += ", q and k normed per head";
  if (attention.qk_norm == model::QkNorm::kWholeProjection) text += ", q and k normed";
  if (attention.clip_qkv) text += fmt::format(", clipped to {:g}", *attention.clip_qkv);
  if (attention.qkv_bias) text += ", biases";
  if (attention.sinks) text += ", sinks";
  return text;
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
  switch (moe.gate_norm) {
    case model::GateNorm::kNone:
      return sigmoid ? "weighted by sigmoid" : "weighted by probability";
    case model::GateNorm::kSum:
      return fmt::format("weights{} sum to {:g}", sigmoid ? " by sigmoid" : "", moe.routed_scale);
    case model::GateNorm::kPNorm:
      return fmt::format("weights have {:g}-norm 1", moe.gate_norm_p);
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
  if (moe.num_groups > moe.top_groups) {
    text += fmt::format(" of {} of {} groups", moe.top_groups, moe.num_groups);
  }
  text += ", " + DescribeWeights(moe);
  if (moe.gate_norm != model::GateNorm::kSum && moe.routed_scale != 1) {
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

std::string DescribeRope(const model::RopeSpec& rope) {
  std::string text = fmt::format("base {}", FormatCount(static_cast<uint64_t>(rope.theta)));
  switch (rope.scaling) {
    case model::RopeScaling::kNone:
      return text;
    case model::RopeScaling::kLinear:
      return text + fmt::format(", linear scaling by {:g}", rope.factor);
    case model::RopeScaling::kDynamic:
      return text + fmt::format(", dynamic scaling by {:g} beyond {} tokens", rope.factor,
                                FormatCount(static_cast<uint64_t>(rope.original_max_positions)));
    case model::RopeScaling::kYarn:
      return text + fmt::format(", YaRN by {:g} from {} tokens", rope.factor,
                                FormatCount(static_cast<uint64_t>(rope.original_max_positions)));
    case model::RopeScaling::kLlama3:
      return text + fmt::format(", Llama 3 scaling by {:g} from {} tokens", rope.factor,
                                FormatCount(static_cast<uint64_t>(rope.original_max_positions)));
  }
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DescribeModel(const ModelSpec& spec) {
  const auto count = [](int value) { return FormatCount(static_cast<uint64_t>(value)); };
  std::vector<std::pair<std::string, std::string>> lines = {
      {"family", spec.family},
      {"layers", DescribeLayers(spec)},
      {"hidden size", count(spec.hidden_size)},
      {"vocabulary", count(spec.vocab_size) + (spec.tied_embeddings ? ", head tied to it" : "")},
      {"context", count(spec.max_positions) + " tokens"},
      {"attention", DescribeAttention(spec.layers.front().attention)},
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
    lines.emplace_back("dense FFN", "width " + count(dense->dense_intermediate_size));
  }
  lines.emplace_back("norm",
                     fmt::format("{}, epsilon {:g}",
                                 spec.norm.kind == model::NormKind::kRms ? "RMSNorm" : "LayerNorm",
                                 spec.norm.epsilon));
  lines.emplace_back("scales", DescribeScales(spec));
  lines.emplace_back("RoPE", DescribeRope(spec.rope));
  std::erase_if(lines, [](const auto& line) { return line.second.empty(); });
  return lines;
}

}  // namespace convene::cli
