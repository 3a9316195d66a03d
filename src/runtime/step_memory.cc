#include "runtime/step_memory.h"

#include <algorithm>
#include <cmath>

namespace convene::runtime {
namespace {

// Most tokens that a rank's sequences have in a micro-batch. The first one also has all those of
// steps that are not cut: of an encoder, and of fewer tokens than are worth it.
int MostTokens(const model::ModelSpec& spec, const TransformerOptions& options, int index) {
  const ParallelOptions& parallel = options.parallel;
  const int micro_batches = parallel.pipeline.micro_batches;
  // Steps that are divided each in its own way may have any number of micro-batches up to that: the
  // last frame is used by those alone that have the most.
  const int fewest = parallel.pipeline_of ? index + 1 : micro_batches;
  const int cut = (options.max_step_tokens + fewest - 1) / fewest;
  if (index > 0) return cut;
  if (spec.has_encoder()) return options.max_step_tokens;
  if (micro_batches == 1) return cut;
  const int uncut = std::max(FewestTokensToCut(options), parallel.micro_batches_from_tokens) - 1;
  return std::max(cut, std::min(options.max_step_tokens, uncut));
}

// Of those: what a rank owns where others have parts of the same sequences' heads.
int MostOwnRows(int tokens, const strategy::Roles& roles) {
  return (tokens + roles.attention_parts() - 1) / roles.attention_parts();
}

// (token, expert) pairs that the experts of a rank may get: all that there are.
int MostSlotsIn(strategy::Phase phase, const model::ModelSpec& spec,
                const TransformerOptions& options, int tokens) {
  const strategy::Roles& roles = options.parallel.RolesIn(phase);
  const strategy::Role& role = roles.of(options.parallel.rank());
  // Dense blocks and shared experts work in their place.
  const int of_rows = role.owns_rows() ? tokens : 0;
  if (!role.has_experts()) return of_rows;
  const auto rows = static_cast<int64_t>(
      tokens * roles.num_groups() * std::max(1.0, options.parallel.experiment.capacity_factor + 1));
  int64_t per_token = 1;
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (!layer.moe) continue;
      const int experts = roles.ExpertsOf(options.parallel.rank(), layer.moe->num_experts).size;
      per_token = std::max<int64_t>(
          per_token, std::min(layer.moe->top_k, experts) + (roles.divides_shared() ? 1 : 0));
    }
  }
  return static_cast<int>(std::max<int64_t>(of_rows, rows * per_token));
}

int MostSlots(const model::ModelSpec& spec, const TransformerOptions& options, int tokens) {
  return std::max(MostSlotsIn(strategy::Phase::kPrefill, spec, options, tokens),
                  MostSlotsIn(strategy::Phase::kDecode, spec, options, tokens));
}

// For the buffers of a layer with such experts, divided so.
void WidenFor(const model::MoeSpec& moe, const strategy::Roles& roles, int64_t most_rows,
              device::ExpertRows::Options& rows) {
  const int64_t share_experts = roles.expert_split().MostExperts(moe.num_experts);
  const auto capacity = static_cast<int64_t>(std::ceil(
      rows.capacity_factor * static_cast<double>(most_rows * moe.top_k) / moe.num_experts));
  const auto widen = [](int64_t& most, int64_t wanted) { most = std::max(most, wanted); };
  widen(rows.most_rows, most_rows);
  widen(rows.most_padded_rows, std::max(most_rows, capacity * share_experts));
  widen(rows.most_pairs, most_rows * (std::min<int64_t>(moe.top_k, share_experts) +
                                      (roles.divides_shared() ? 1 : 0)));
}

device::ExpertRows::Options ExpertRowsOptions(const model::ModelSpec& spec,
                                              const TransformerOptions& options, int most_rows) {
  const ParallelOptions& parallel = options.parallel;
  const device::WireRows wire = WireRowsOf(spec, options);
  device::ExpertRows::Options rows{.roles = parallel.SeenRoles(),
                                   .pipeline = parallel.pipeline,
                                   .rank = parallel.rank(),
                                   .dispatch_row_bytes = wire.dispatch_bytes,
                                   .return_row_bytes = wire.returned_bytes,
                                   .capacity_factor = parallel.experiment.capacity_factor};
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (!layer.moe) continue;
      for (const auto phase : {strategy::Phase::kPrefill, strategy::Phase::kDecode}) {
        WidenFor(*layer.moe, parallel.RolesIn(phase), most_rows, rows);
      }
    }
  }
  return rows;
}

// Whose logits are computed at once.
int HeadRowsOf(const TransformerOptions& options) {
  return static_cast<int>(std::min<int64_t>(
      strategy::kHeadRows,
      int64_t{1} * options.max_step_tokens * options.parallel.roles.num_groups()));
}

}  // namespace

int FewestTokensToCut(const TransformerOptions& options) {
  return options.parallel.pipeline.micro_batches * options.parallel.roles.num_groups();
}

device::WireRows WireRowsOf(const model::ModelSpec& spec, const TransformerOptions& options) {
  return device::WireRowsOf(spec, options.activations, options.parallel.wire,
                            options.parallel.returns_fp8);
}

device::Frame::Options FrameOptions(const model::ModelSpec& spec, const TransformerOptions& options,
                                    int index) {
  const ParallelOptions& parallel = options.parallel;
  const int tokens = MostTokens(spec, options, index);
  const int rows = MostOwnRows(tokens, parallel.roles);
  const device::WireRows wire = WireRowsOf(spec, options);
  return {
      .attention = parallel.roles.of(parallel.rank()).attention.value_or(strategy::AttentionRole{}),
      .expert_rows = ExpertRowsOptions(spec, options, rows),
      .row_buffers = {.roles = parallel.roles,
                      .rank = parallel.rank(),
                      .most_tokens = tokens,
                      .most_rows = rows,
                      .sum_bytes = wire.sum_bytes,
                      .gathered_bytes = wire.gathered_bytes,
                      .head_rows = index == 0 ? HeadRowsOf(options) : 0,
                      .vocab_size = spec.vocab_size}};
}

device::StepShape StepShapeOf(const model::ModelSpec& spec, const TransformerOptions& options) {
  const strategy::Roles& roles = options.parallel.roles;
  const strategy::Role& role = roles.of(options.parallel.rank());
  const bool may_need_head = role.has_head() || role.owns_rows();
  device::StepShape shape{
      .head_rows = may_need_head ? options.max_step_tokens * roles.num_groups() : 0,
      .context =
          options.context > 0 ? options.context : options.num_kv_blocks * device::kKvBlockTokens,
      .num_ranks = roles.num_ranks()};
  for (int i = 0; i < options.parallel.pipeline.micro_batches; ++i) {
    const int tokens = MostTokens(spec, options, i);
    shape.frames.push_back(
        {.tokens = role.owns_rows() ? tokens : 0,
         .slots = MostSlots(spec, options, tokens),
         .is_partial = role.owns_rows() && roles.attention_parts() > 1,
         .exchange_bytes = device::Frame::ExchangeBytes(FrameOptions(spec, options, i))});
  }
  return shape;
}

}  // namespace convene::runtime
