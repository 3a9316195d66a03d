#include "runtime/step_memory.h"

#include <algorithm>
#include <utility>

namespace convene::runtime {
namespace {

// Most tokens that a rank's sequences have in a micro-batch. The first one also has all those of
// steps that are not cut: of an encoder, and of fewer tokens than are worth it.
int MostTokens(const model::ModelSpec& spec, const TransformerOptions& options, int index) {
  const ParallelOptions& parallel = options.parallel;
  const int micro_batches = parallel.pipeline.micro_batches;
  const int cut = (options.max_step_tokens + micro_batches - 1) / micro_batches;
  if (index > 0) return cut;
  if (spec.has_encoder()) return options.max_step_tokens;
  return std::max(cut, std::min(options.max_step_tokens, FewestTokensToCut(options) - 1));
}

// Of those: what a rank owns where others have parts of the same sequences' heads.
int MostOwnRows(int tokens, const strategy::Roles& roles) {
  return (tokens + roles.attention_parts() - 1) / roles.attention_parts();
}

// (token, expert) pairs that the experts of a rank may get: all that there are.
int MostSlots(const model::ModelSpec& spec, const TransformerOptions& options, int tokens) {
  const strategy::Roles& roles = options.parallel.roles;
  const auto rows = static_cast<int64_t>(
      tokens * roles.num_groups() * std::max(1.0, options.parallel.experiment.capacity_factor + 1));
  int64_t per_token = 1;
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (!layer.moe) continue;
      const int experts = roles.ExpertsOf(options.parallel.rank(), layer.moe->num_experts).size;
      per_token = std::max<int64_t>(per_token, std::min(layer.moe->top_k, experts));
    }
  }
  return static_cast<int>(std::max<int64_t>(tokens, rows * per_token));
}

Activations::Shape FrameShape(const model::ModelSpec& spec, const TransformerOptions& options,
                              int index) {
  const int tokens = MostTokens(spec, options, index);
  return {.tokens = tokens,
          .slots = MostSlots(spec, options, tokens),
          .is_partial = options.parallel.roles.attention_parts() > 1,
          .exchange_bytes =
              Frame::ExchangeBytes(spec, options.activations, FrameOptions(spec, options, index))};
}

Workspace::Shape WorkspaceShape(const model::ModelSpec& spec, const TransformerOptions& options,
                                int num_threads) {
  const int tokens = MostTokens(spec, options, 0);
  return {.tokens = tokens,
          .slots = MostSlots(spec, options, tokens),
          .head_rows = options.max_step_tokens * options.parallel.roles.num_groups(),
          .context = ContextOf(options),
          .num_threads = num_threads,
          .num_ranks = options.parallel.roles.num_ranks()};
}

}  // namespace

int FewestTokensToCut(const TransformerOptions& options) {
  return options.parallel.pipeline.micro_batches * options.parallel.roles.num_groups();
}

int ContextOf(const TransformerOptions& options) {
  return options.context > 0 ? options.context : options.num_kv_blocks * kKvBlockTokens;
}

FeedForward::Options FeedForwardOptions(const TransformerOptions& options) {
  const ParallelOptions& parallel = options.parallel;
  return {.roles = parallel.roles,
          .pipeline = parallel.pipeline,
          .rank = parallel.rank(),
          .wire = parallel.wire,
          .experiment = parallel.experiment};
}

Frame::Options FrameOptions(const model::ModelSpec& spec, const TransformerOptions& options,
                            int index) {
  const ParallelOptions& parallel = options.parallel;
  const int tokens = MostTokens(spec, options, index);
  const int rows = MostOwnRows(tokens, parallel.roles);
  return {.attention = *parallel.roles.of(parallel.rank()).attention,
          .expert_rows = FeedForward::RowsOptions(FeedForwardOptions(options), spec,
                                                  options.activations, rows),
          .row_exchange = {.roles = parallel.roles,
                           .rank = parallel.rank(),
                           .wire = parallel.wire,
                           .most_tokens = tokens,
                           .most_rows = rows}};
}

memory::Amounts StepMemory::SizeBytes(const model::ModelSpec& spec,
                                      const TransformerOptions& options, int num_threads) {
  memory::Amounts bytes;
  bytes[memory::Use::kWorking] =
      Workspace::SizeBytes(spec, options.activations, WorkspaceShape(spec, options, num_threads));
  for (int i = 0; i < options.parallel.pipeline.micro_batches; ++i) {
    const Activations::Shape shape = FrameShape(spec, options, i);
    bytes[memory::Use::kWorking] += Activations::SizeBytes(spec, options.activations, shape);
    bytes[memory::Use::kExchange] += static_cast<uint64_t>(shape.exchange_bytes);
  }
  return bytes;
}

Result<StepMemory> StepMemory::Create(const model::ModelSpec& spec,
                                      const TransformerOptions& options, int num_threads,
                                      memory::Ledger& ledger) {
  Result<Workspace> workspace = Workspace::Create(
      spec, options.activations, WorkspaceShape(spec, options, num_threads), ledger);
  if (!workspace) return workspace.error();
  StepMemory memory{.workspace = *std::move(workspace), .frames = {}};
  for (int i = 0; i < options.parallel.pipeline.micro_batches; ++i) {
    Result<Activations> frame =
        Activations::Create(spec, options.activations, FrameShape(spec, options, i), ledger);
    if (!frame) return frame.error();
    memory.frames.push_back(*std::move(frame));
  }
  return memory;
}

}  // namespace convene::runtime
