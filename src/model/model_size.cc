#include "model/model_size.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace convene::model {
namespace {

int64_t ExpertParameters(const ModelSpec& spec, const MoeSpec& moe) {
  return int64_t{3} * spec.hidden_size * moe.intermediate_size;
}

// Keys that the tokens at positions first .. first + count - 1 see, summed.
double KeysSeen(int window, int first, int count) {
  // Position p sees p + 1 keys, but never more than the window: the sum of min(p + 1, window).
  const double begin = first;
  const double end = begin + count;
  const auto triangle = [](double n) { return n * (n + 1) / 2; };
  if (window == 0) return triangle(end) - triangle(begin);
  const double growing_end = std::clamp<double>(window, begin, end);
  return triangle(growing_end) - triangle(begin) + (end - growing_end) * window;
}

}  // namespace

std::string_view Name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kEmbedding:
      return "embedding";
    case TensorKind::kAttention:
      return "attention";
    case TensorKind::kNorms:
      return "norms";
    case TensorKind::kRouter:
      return "router";
    case TensorKind::kExperts:
      return "experts";
    case TensorKind::kSharedExperts:
      return "shared experts";
    case TensorKind::kDenseFfn:
      return "dense FFN";
    case TensorKind::kHead:
      return "head";
  }
  return "unknown";
}

TensorKind KindOf(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return TensorKind::kEmbedding;
    case TensorRole::kHead:
      return TensorKind::kHead;
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kFfnNorm:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return TensorKind::kNorms;
    case TensorRole::kQuery:
    case TensorRole::kKey:
    case TensorRole::kValue:
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kAttentionOutput:
    case TensorRole::kAttentionOutputBias:
      return TensorKind::kAttention;
    case TensorRole::kDenseGate:
    case TensorRole::kDenseUp:
    case TensorRole::kDenseDown:
      return TensorKind::kDenseFfn;
    case TensorRole::kRouter:
      return TensorKind::kRouter;
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
      return TensorKind::kExperts;
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
    case TensorRole::kSharedDown:
    case TensorRole::kSharedExpertGate:
      return TensorKind::kSharedExperts;
  }
  CHECK(false, "role {}", static_cast<int>(role));
  return TensorKind::kNorms;
}

ParameterCounts CountParameters(const ModelSpec& spec) {
  ParameterCounts counts = {};
  for (const TensorBinding& tensor : spec.tensors) {
    counts[static_cast<int>(KindOf(tensor.role))] += tensor.rows * tensor.cols;
  }
  return counts;
}

int64_t TotalParameters(const ModelSpec& spec) {
  const ParameterCounts counts = CountParameters(spec);
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t ActivatedParameters(const ModelSpec& spec) {
  int64_t active = TotalParameters(spec);
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    active -= (layer.moe->num_experts - layer.moe->top_k) * ExpertParameters(spec, *layer.moe);
  }
  return active;
}

int64_t KvElementsPerToken(const ModelSpec& spec) {
  int64_t elements = 0;
  for (const LayerSpec& layer : spec.layers) elements += int64_t{2} * layer.attention.kv_dim();
  return elements;
}

TokenFlops FlopsOfTokens(const ModelSpec& spec, int first, int count, int num_logits) {
  const double hidden = spec.hidden_size;
  const double tokens = count;
  TokenFlops flops;
  for (const LayerSpec& layer : spec.layers) {
    const double query_dim = layer.attention.query_dim();
    const double kv_dim = layer.attention.kv_dim();
    flops.attention_projections +=
        tokens * 2 * hidden * (query_dim + 2 * kv_dim) + tokens * 2 * query_dim * hidden;
    flops.attention_scores += 4 * query_dim * KeysSeen(layer.attention.window, first, count);
    if (layer.moe) {
      const MoeSpec& moe = *layer.moe;
      flops.router += tokens * 2 * hidden * moe.num_experts;
      flops.experts += tokens * 6 * hidden * moe.intermediate_size * moe.top_k;
      flops.shared_experts += tokens * 6 * hidden * moe.shared_intermediate_size;
      if (moe.shared_expert_gate) flops.shared_experts += tokens * 2 * hidden;
    } else {
      flops.dense_ffn += tokens * 6 * hidden * layer.dense_intermediate_size;
    }
  }
  flops.head = 2.0 * hidden * spec.vocab_size * num_logits;
  return flops;
}

TokenFlops FlopsOfToken(const ModelSpec& spec, int position, bool with_head) {
  return FlopsOfTokens(spec, position, 1, with_head ? 1 : 0);
}

int64_t WeightElementsRead(const ModelSpec& spec, std::span<const int> activated_experts) {
  CHECK(activated_experts.size() == spec.layers.size(), "{} layers", activated_experts.size());
  const ParameterCounts counts = CountParameters(spec);
  int64_t elements = TotalParameters(spec);
  if (!spec.tied_embeddings) elements -= counts[static_cast<int>(TensorKind::kEmbedding)];
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const std::optional<MoeSpec>& moe = spec.layers[layer].moe;
    if (!moe) continue;
    elements -= (moe->num_experts - activated_experts[layer]) * ExpertParameters(spec, *moe);
  }
  return elements;
}

double ExpectedActivatedExperts(const MoeSpec& moe, int tokens) {
  const double left_out = 1.0 - static_cast<double>(moe.top_k) / moe.num_experts;
  return moe.num_experts * (1.0 - std::pow(left_out, tokens));
}

}  // namespace convene::model
