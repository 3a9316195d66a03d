#include "engine/rank_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/units.h"
#include "engine/choose_pipeline.h"
#include "planner/pipeline_degree.h"
#include "runtime/expert_mover.h"
#include "weights/load_weights.h"
#include "weights/weight_layout.h"

namespace convene::engine {

namespace {

weights::Share ShareOfRank(const plan::Plan& plan, int rank) {
  if (!plan.changes_layout()) return weights::ShareOf(plan.layout, rank);
  return weights::ShareOf(plan.layout, *plan.decode, plan.phase_change.keeps_both, rank);
}

std::optional<strategy::Roles> DecodeRolesOf(const plan::Plan& plan) {
  if (!plan.changes_layout()) return std::nullopt;
  return *plan.decode;
}

}  // namespace

weights::Share ShareOf(const LoadOptions& options) {
  return ShareOfRank(options.plan, options.group != nullptr ? options.group->rank() : 0);
}

runtime::TransformerOptions TransformerOptionsOf(const LoadOptions& options,
                                                 const runtime::Formats& formats, int context) {
  return {.max_step_tokens = options.max_step_tokens,
          .context = context,
          .activations = formats.activations,
          .kv = formats.kv,
          .expert_capacity = options.expert_capacity,
          .parallel = {.roles = options.plan.layout,
                       .decode_roles = DecodeRolesOf(options.plan),
                       .pipeline = options.plan.pipeline,
                       .wire = WireFormatOf(options.plan.wire, options.plan.layout.num_ranks()),
                       .returns_fp8 = ReturnsFp8(options.plan.wire),
                       .comm_budget = options.plan.comm_budget,
                       .experiment = options.experiment,
                       .record = options.record,
                       .group = options.group}};
}

memory::Amounts StepBytesOf(const device::DeviceBytes& device, const model::ModelSpec& share,
                            runtime::TransformerOptions parts, const plan::Plan& plan,
                            int num_threads) {
  memory::Amounts most = runtime::Transformer::StepBytes(device, share, parts, num_threads);
  if (!plan.auto_pipeline || plan.pipeline.micro_batches > 1) return most;
  parts.parallel.pipeline.micro_batches = planner::kMicroBatchesToChoose;
  parts.parallel.micro_batches_from_tokens = std::numeric_limits<int>::max();
  const memory::Amounts cut = runtime::Transformer::StepBytes(device, share, parts, num_threads);
  for (int i = 0; i < memory::kNumUses; ++i) {
    const auto use = static_cast<memory::Use>(i);
    most[use] = std::max(most[use], cut[use]);
  }
  return most;
}

Result<MemoryPlan> PlanMemoryOf(const device::DeviceBytes& device, const model::ModelSpec& spec,
                                const LoadOptions& options, const runtime::Formats& formats,
                                int num_threads, memory::Ledger& ledger) {
  return PlanMemoryOfRank(options.group != nullptr ? options.group->rank() : 0, device, spec,
                          options, formats, num_threads, ledger);
}

Result<MemoryPlan> PlanMemoryOfRank(int rank, const device::DeviceBytes& device,
                                    const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats, int num_threads,
                                    memory::Ledger& ledger) {
  const weights::Share share = ShareOfRank(options.plan, rank);
  const Result<model::ModelSpec> local = weights::LocalSpec(spec, share, formats.weights);
  if (!local) return local.error();
  const Result<model::ModelSpec> widest = weights::WidestSpec(spec, share, formats.weights);
  if (!widest) return widest.error();
  const int context = options.context.value_or(std::min(spec.max_positions, kDefaultContext));
  const int num_groups = options.plan.layout.attention_dp;
  runtime::TransformerOptions parts = TransformerOptionsOf(options, formats, context);
  parts.parallel.rank_without_group = rank;
  MemoryNeeds needs{
      .fixed = StepBytesOf(device, *widest, std::move(parts), options.plan, num_threads),
      .kv_block_bytes = device.of_kv_block(*local, formats.kv),
      .context = context,
      .max_sequences = (options.max_sequences + num_groups - 1) / num_groups,
      .contexts_per_sequence = spec.has_encoder() ? 2 : 1,
  };
  const weights::ExpertRooms rooms = weights::RoomsOf(spec, formats.weights, share);
  needs.fixed[memory::Use::kWeights] =
      weights::PackedSizeBytes(*local, formats.weights, share, rooms);
  if (options.plan.changes_layout()) {
    const uint64_t staging = runtime::ExpertMover::StagingBytes(
        spec, formats.weights, {options.plan.layout, *options.plan.decode});
    needs.fixed[memory::Use::kExchange] += staging;
    const uint64_t alone = weights::PackedSizeBytes(*local, formats.weights, share);
    needs.besides = fmt::format(
        "the experts' other division in decode takes {} of room and {} for moving: without "
        "--decode-experts (decode in the plan), or with \"keep\": \"one\", less is needed",
        FormatBytes(needs.fixed[memory::Use::kWeights] - alone), FormatBytes(staging));
  }
  return PlanMemory(needs, ledger);
}

}  // namespace convene::engine
