#include "engine/rank_options.h"

#include <algorithm>

#include "engine/choose_pipeline.h"
#include "weights/load_weights.h"

namespace convene::engine {

weights::Share ShareOf(const LoadOptions& options) {
  return weights::ShareOf(options.plan.layout,
                          options.group != nullptr ? options.group->rank() : 0);
}

runtime::TransformerOptions TransformerOptionsOf(const LoadOptions& options,
                                                 const runtime::Formats& formats, int context) {
  return {.max_step_tokens = options.max_step_tokens,
          .context = context,
          .activations = formats.activations,
          .kv = formats.kv,
          .expert_capacity = options.expert_capacity,
          .parallel = {.roles = options.plan.layout,
                       .decode_roles = options.plan.decode,
                       .pipeline = options.plan.pipeline,
                       .wire = WireFormatOf(options.plan.wire, options.plan.layout.num_ranks()),
                       .comm_budget = options.plan.comm_budget,
                       .experiment = options.experiment,
                       .record = options.record,
                       .group = options.group}};
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
  const weights::Share share = weights::ShareOf(options.plan.layout, rank);
  const Result<model::ModelSpec> local = weights::LocalSpec(spec, share, formats.weights);
  if (!local) return local.error();
  const int context = options.context.value_or(std::min(spec.max_positions, kDefaultContext));
  const int num_groups = options.plan.layout.attention_dp;
  runtime::TransformerOptions parts = TransformerOptionsOf(options, formats, context);
  parts.parallel.rank_without_group = rank;
  MemoryNeeds needs{
      .fixed = runtime::Transformer::StepBytes(device, *local, parts, num_threads),
      .kv_block_bytes = device.of_kv_block(*local, formats.kv),
      .context = context,
      .max_sequences = (options.max_sequences + num_groups - 1) / num_groups,
      .contexts_per_sequence = spec.has_encoder() ? 2 : 1,
  };
  needs.fixed[memory::Use::kWeights] = weights::PackedSizeBytes(*local, formats.weights, share);
  return PlanMemory(needs, ledger);
}

}  // namespace convene::engine
