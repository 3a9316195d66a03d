#include "model/model_size.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace convene::model {
namespace {

int64_t ExpertParameters(const ModelSpec& spec, const MoeSpec& moe) {
  const int64_t matrices = moe.activation.gated() ? 3 : 2;
  const int64_t biases = (matrices - 1) * moe.intermediate_size + spec.hidden_size;
  return matrices * spec.hidden_size * moe.intermediate_size + (moe.expert_bias ? biases : 0);
}

// Elements of the matrices between the residual stream and attention.
double ProjectionElements(const ModelSpec& spec, const AttentionSpec& attention) {
  const double hidden = spec.hidden_size;
  const double output = hidden * attention.output_dim();
  if (!attention.latent) {
    return output + hidden * (attention.query_dim() + attention.kv_dim() + attention.value_width());
  }
  const LatentSpec& latent = *attention.latent;
  const double query = latent.query_rank == 0
                           ? hidden * attention.query_dim()
                           : (hidden + attention.query_dim()) * latent.query_rank;
  const double kv_up =
      1.0 * attention.num_heads * (latent.nope_dim + attention.value_dim) * latent.kv_rank;
  return output + query + hidden * latent.key_dim() + kv_up;
}

double FfnElements(const ActivationSpec& activation, double hidden, double intermediate) {
  return (activation.gated() ? 3 : 2) * hidden * intermediate;
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

// Parameters of the experts that a token leaves out on its way through a stack.
int64_t LeftOut(const ModelSpec& spec, const std::vector<LayerSpec>& layers) {
  int64_t parameters = 0;
  for (const LayerSpec& layer : layers) {
    if (!layer.moe) continue;
    parameters += (layer.moe->num_experts - layer.moe->top_k) * ExpertParameters(spec, *layer.moe);
  }
  return parameters;
}

// Self attention and feed-forward block over `tokens` tokens that see `keys` keys, summed.
void AddLayer(const ModelSpec& spec, const LayerSpec& layer, double tokens, double keys,
              TokenFlops* flops) {
  const double hidden = spec.hidden_size;
  const double score_elements = layer.attention.query_dim() + layer.attention.output_dim();
  flops->attention_projections += tokens * 2 * ProjectionElements(spec, layer.attention);
  flops->attention_scores += 2 * score_elements * keys;
  if (!layer.moe) {
    flops->dense_ffn +=
        tokens * 2 * FfnElements(layer.dense_activation, hidden, layer.dense_intermediate_size);
    return;
  }
  const MoeSpec& moe = *layer.moe;
  flops->router += tokens * 2 * hidden * moe.num_experts;
  flops->experts +=
      tokens * 2 * FfnElements(moe.activation, hidden, moe.intermediate_size) * moe.top_k;
  flops->shared_experts +=
      tokens * 2 * FfnElements(moe.activation, hidden, moe.shared_intermediate_size);
  if (moe.shared_expert_gate) flops->shared_experts += tokens * 2 * hidden;
}

}  // namespace

std::string_view Name(TensorKind kind) {
  constexpr std::array<std::string_view, kNumTensorKinds> kNames = {
      "embedding", "attention",      "cross attention", "norms", "router",
      "experts",   "shared experts", "dense FFN",       "head"};
  return kNames[static_cast<size_t>(kind)];
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
    case TensorRole::kQueryDownNorm:
    case TensorRole::kKvDownNorm:
    case TensorRole::kCrossNorm:
      return TensorKind::kNorms;
    case TensorRole::kQuery:
    case TensorRole::kKey:
    case TensorRole::kValue:
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kAttentionOutput:
    case TensorRole::kAttentionOutputBias:
    case TensorRole::kQueryDown:
    case TensorRole::kQueryDownBias:
    case TensorRole::kQueryUp:
    case TensorRole::kKvDown:
    case TensorRole::kKvDownBias:
    case TensorRole::kKvUp:
    case TensorRole::kSinks:
    case TensorRole::kRelativeBias:
      return TensorKind::kAttention;
    case TensorRole::kCrossQuery:
    case TensorRole::kCrossKey:
    case TensorRole::kCrossValue:
    case TensorRole::kCrossOutput:
      return TensorKind::kCrossAttention;
    case TensorRole::kDenseGate:
    case TensorRole::kDenseUp:
    case TensorRole::kDenseDown:
      return TensorKind::kDenseFfn;
    case TensorRole::kRouter:
    case TensorRole::kRouterBias:
    case TensorRole::kCorrectionBias:
      return TensorKind::kRouter;
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
    case TensorRole::kExpertGateBias:
    case TensorRole::kExpertUpBias:
    case TensorRole::kExpertDownBias:
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
  return TotalParameters(spec) - LeftOut(spec, spec.layers) - LeftOut(spec, spec.encoder_layers);
}

StackParameters EncoderParameters(const ModelSpec& spec) {
  StackParameters parameters;
  for (const TensorBinding& tensor : spec.tensors) {
    if (tensor.encoder) parameters.total += tensor.rows * tensor.cols;
  }
  parameters.activated = parameters.total - LeftOut(spec, spec.encoder_layers);
  return parameters;
}

int64_t CrossElementsPerInputToken(const ModelSpec& spec) {
  int64_t elements = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.cross_attention) continue;
    elements += layer.cross_attention->kv_dim() + layer.cross_attention->value_width();
  }
  return elements;
}

TokenFlops FlopsOfTokens(const ModelSpec& spec, int first, int count, int num_logits,
                         int input_length) {
  const double hidden = spec.hidden_size;
  TokenFlops flops;
  for (const LayerSpec& layer : spec.layers) {
    AddLayer(spec, layer, count, KeysSeen(layer.attention.window, first, count), &flops);
    if (!layer.cross_attention) continue;
    const AttentionSpec& cross = *layer.cross_attention;
    flops.cross_attention +=
        2.0 * count * (cross.query_dim() + cross.output_dim()) * (hidden + input_length);
  }
  flops.head = 2.0 * hidden * spec.vocab_size * num_logits;
  return flops;
}

TokenFlops FlopsOfToken(const ModelSpec& spec, int position, bool with_head, int input_length) {
  return FlopsOfTokens(spec, position, 1, with_head ? 1 : 0, input_length);
}

double AbsorbedScoreFlops(const ModelSpec& spec, int position) {
  double flops = 0;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const double elements =
        attention.latent
            ? 1.0 * attention.num_heads * (attention.latent->key_dim() + attention.latent->kv_rank)
            : attention.query_dim() + attention.output_dim();
    flops += 2 * elements * KeysSeen(attention.window, position, 1);
  }
  return flops;
}

TokenFlops FlopsOfInput(const ModelSpec& spec, int length) {
  TokenFlops flops;
  // Every token sees all.
  const double keys = 1.0 * length * length;
  for (const LayerSpec& layer : spec.encoder_layers) AddLayer(spec, layer, length, keys, &flops);
  flops.cross_attention =
      2.0 * length * spec.hidden_size * static_cast<double>(CrossElementsPerInputToken(spec));
  return flops;
}

}  // namespace convene::model
