#include "planner/hybrid_memory.h"

#include <algorithm>
#include <cmath>

#include "model/model_size.h"
#include "strategy/role.h"
#include "strategy/work.h"

namespace convene::planner {
namespace {

double Elements(const model::ModelSpec& spec, model::TensorKind kind) {
  return static_cast<double>(model::CountParameters(spec)[static_cast<size_t>(kind)]);
}

// Of the first group, which has most.
double TokensOfGroup(const PhaseStep& step, int num_groups) {
  return std::ceil(double(step.batch) / num_groups) * step.tokens;
}

double AttentionActivations(const model::ModelSpec& spec, const AttentionStrategy& strategy,
                            const strategy::ElementBytes& bytes, const PhaseStep& step) {
  const double tokens = TokensOfGroup(step, strategy.data);
  const double own_rows = tokens / strategy.tensor;
  double widest = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    widest = std::max(widest, double(attention.query_dim()) + attention.kv_dim() +
                                  attention.value_width() + attention.output_dim());
  }
  // The residual stream and partial sums in float32, normed rows, and what attention makes of them.
  return own_rows * spec.hidden_size * 8 + tokens * spec.hidden_size * bytes.activations +
         tokens * widest / strategy.tensor * bytes.activations;
}

double ExpertActivations(const model::ModelSpec& spec, const ExpertStrategy& strategy,
                         const strategy::ElementBytes& bytes, const PhaseStep& step) {
  double widest = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const double rows = step.batch * step.tokens * layer.moe->top_k / strategy.expert;
    const double row = spec.hidden_size * (bytes.dispatched + bytes.returned) +
                       3.0 * layer.moe->intermediate_size / strategy.tensor * bytes.activations;
    widest = std::max(widest, rows * row);
  }
  return strategy.expert > 1 ? 2 * widest : widest;
}

}  // namespace

AttentionBytes BytesOf(const model::ModelSpec& spec, const AttentionStrategy& strategy,
                       const strategy::ElementBytes& bytes, const PhaseStep& prefill,
                       const PhaseStep& decode, double longest_sequence) {
  const model::ParameterCounts counts = model::CountParameters(spec);
  double whole = 0;
  for (const int64_t count : counts) whole += static_cast<double>(count);
  const double attention = Elements(spec, model::TensorKind::kAttention);
  whole -= attention + Elements(spec, model::TensorKind::kExperts);
  const strategy::AttentionRole role = {.parts = strategy.tensor};
  double cached = 0;  // elements of a token, in all layers
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& of_layer = layer.attention;
    const double head =
        of_layer.latent ? of_layer.latent->key_dim() : of_layer.head_dim + of_layer.value_dim;
    cached += head * role.CacheOf(of_layer).heads.size;
  }
  const double sequences = std::ceil(double(decode.batch) / strategy.data);
  const double logits = 4.0 * decode.batch * spec.vocab_size;
  return {.weights = (attention / strategy.tensor + whole) * bytes.weights,
          .kv = sequences * longest_sequence * cached * bytes.kv,
          .prefill_activations = logits + AttentionActivations(spec, strategy, bytes, prefill),
          .decode_activations = logits + AttentionActivations(spec, strategy, bytes, decode)};
}

ExpertBytes BytesOf(const model::ModelSpec& spec, const ExpertStrategy& strategy,
                    const strategy::ElementBytes& bytes, const PhaseStep& prefill,
                    const PhaseStep& decode) {
  double elements = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const strategy::ExpertSplit split(strategy.expert);
    elements += split.MostExperts(layer.moe->num_experts) *
                strategy::ExpertElements(spec, *layer.moe) / strategy.tensor;
  }
  return {.weights = elements * bytes.weights,
          .prefill_activations = ExpertActivations(spec, strategy, bytes, prefill),
          .decode_activations = ExpertActivations(spec, strategy, bytes, decode)};
}

double HeadElements(const model::ModelSpec& spec) {
  return Elements(spec, model::TensorKind::kHead);
}

double SharedElements(const model::ModelSpec& spec) {
  return Elements(spec, model::TensorKind::kSharedExperts);
}

double Int4BackupBytes(const model::ModelSpec& spec) {
  return Elements(spec, model::TensorKind::kExperts) * kInt4BackupBytes;
}

}  // namespace convene::planner
