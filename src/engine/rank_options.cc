#include "engine/rank_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "base/units.h"
#include "engine/choose_pipeline.h"
#include "engine/step_sampling.h"
#include "hardware/memory_status.h"
#include "planner/pipeline_degree.h"
#include "planner/step_turns.h"
#include "runtime/expert_mover.h"
#include "weights/expert_backup.h"
#include "weights/load_weights.h"
#include "weights/page_index.h"
#include "weights/weight_layout.h"

namespace convene::engine {

namespace {

// Where a plan says what steps take, each has its own micro-batches, chunks and order.
std::function<strategy::Pipeline(const strategy::StepLoad&)> PipelineOf(const plan::Plan& plan) {
  if (plan.lines.empty()) return {};
  return [turns = planner::StepTurns(plan.lines, plan.pipeline)](
             const strategy::StepLoad& load) mutable { return turns.For(load); };
}

weights::Share ShareOfRank(const plan::Plan& plan, int rank) {
  if (!plan.changes_layout()) return weights::ShareOf(plan.layout, rank);
  return weights::ShareOf(plan.layout, *plan.decode, plan.phase_change.keeps_both, rank);
}

// Of this process, pages of files included.
uint64_t ResidentBytes() {
  const hardware::ResidentMemory resident = hardware::ReadResidentMemory();
  return resident.own_bytes + resident.file_bytes;
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
                       .loads_experts = options.plan.loads_experts(),
                       .pipeline = options.plan.pipeline,
                       .pipeline_of = PipelineOf(options.plan),
                       .chunks_from_tokens = options.plan.cut_from_tokens,
                       .micro_batches_from_tokens = options.plan.cut_from_tokens,
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

void LimitTo(std::optional<uint64_t> memory_budget, memory::Tier* tier) {
  if (!memory_budget) return;
  const uint64_t taken = ResidentBytes();
  const uint64_t left = *memory_budget - std::min(*memory_budget, taken);
  if (left >= tier->budget_bytes) return;
  tier->budget_bytes = left;
  tier->taken_bytes = taken;
  tier->limited_by = fmt::format("--memory-budget {}, of which the program has {}",
                                 FormatBytes(*memory_budget), FormatBytes(taken));
}

uint64_t LeftOfBudget(uint64_t memory_budget) {
  // Until it loads it takes a little more: buffers of exchanges, and what it finds out of ranks.
  constexpr uint64_t kGrowsBytes = uint64_t{8} << 20;
  return memory_budget - std::min(memory_budget, ResidentBytes() + kGrowsBytes);
}

Result<MemoryPlan> PlanMemoryOf(const device::DeviceBytes& device, const model::ModelSpec& spec,
                                const LoadOptions& options, const runtime::Formats& formats,
                                int num_threads, memory::Ledger& ledger) {
  return PlanMemoryOfRank(options.group != nullptr ? options.group->rank() : 0, device, spec,
                          options, formats, num_threads, ledger);
}

namespace {

// Biases of experts are no matrices, and lie with the program's own memory. In models of many
// experts they are more than that has room for (gpt-oss-120b: 152 MiB).
uint64_t ExpertBiasBytes(const model::ModelSpec& local) {
  uint64_t count = 0;
  for (const auto* layers : {&local.layers, &local.encoder_layers}) {
    for (const model::LayerSpec& layer : *layers) {
      if (!layer.moe || !layer.moe->expert_bias) continue;
      const int of_expert = 2 * layer.moe->intermediate_size + local.hidden_size;
      count += static_cast<uint64_t>(layer.moe->num_experts) * static_cast<uint64_t>(of_expert);
    }
  }
  return count * sizeof(float);
}

}  // namespace

Result<RankNeeds> RankNeeds::Create(int rank, const device::DeviceBytes& device,
                                    const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats, int num_threads) {
  const weights::Share share = ShareOfRank(options.plan, rank);
  const Result<model::ModelSpec> local = weights::LocalSpec(spec, share, formats.weights);
  if (!local) return local.error();
  Result<model::ModelSpec> widest = weights::WidestSpec(spec, share, formats.weights);
  if (!widest) return widest.error();
  if (device.supports != nullptr) {
    const Status can = device.supports(*widest, formats.activations);
    if (!can) return can.error();
  }
  RankNeeds needs;
  needs.device_ = device;
  needs.widest_ = *std::move(widest);
  needs.widest_.tensors.clear();
  needs.plan_ = options.plan;
  needs.num_threads_ = num_threads;
  needs.draws_tokens_ = rank == 0 && !options.gpu;
  const int context = ContextOf(spec, options);
  needs.parts_ = TransformerOptionsOf(options, formats, context);
  needs.parts_.parallel.rank_without_group = rank;
  MemoryNeeds& common = needs.common_;
  common.kv_block_bytes = device.of_kv_block(*local, formats.kv);
  common.context = context;
  common.contexts_per_sequence = spec.has_encoder() ? 2 : 1;
  common.fixed[memory::Use::kProgram] = ExpertBiasBytes(*local);
  const weights::ExpertRooms rooms = weights::RoomsOf(spec, formats.weights, share);
  common.fixed[memory::Use::kWeights] =
      weights::PackedSizeBytes(*local, formats.weights, share, rooms);
  if (options.plan.experts_in_memory) {
    const weights::PagedSizes sizes =
        weights::PagedSizesOf(spec, formats.weights, {options.plan.layout, rank});
    common.fixed[memory::Use::kWeights] = sizes.bytes_with(
        std::clamp(*options.plan.experts_in_memory, sizes.fewest_buffers, sizes.num_pages));
  }
  if (options.plan.changes_layout()) {
    const uint64_t staging = runtime::ExpertMover::StagingBytes(
        spec, formats.weights, {options.plan.layout, *options.plan.decode});
    common.fixed[memory::Use::kExchange] = staging;
    const uint64_t alone = weights::PackedSizeBytes(*local, formats.weights, share);
    common.besides = fmt::format(
        "the experts' other division in decode takes {} of room and {} for moving: without "
        "--decode-experts (decode in the plan), or with \"keep\": \"one\", less is needed",
        FormatBytes(common.fixed[memory::Use::kWeights] - alone), FormatBytes(staging));
  }
  if (options.plan.loads_experts()) {
    if (Status fits = weights::ExpertBackup::CheckFormats(formats.weights); !fits) {
      return fits.error();
    }
    const auto bytes = weights::ExpertBackup::BytesOf(spec, formats.weights, share);
    common.fixed[memory::Use::kWeights] += bytes.originals + bytes.backup;
    common.fixed[memory::Use::kWorking] = bytes.working;
    common.besides += fmt::format(
        "; the int4 backup of decode's experts takes {}, and what prefill's division needs to come "
        "back {}: without the transition int4 they are not needed",
        FormatBytes(bytes.backup), FormatBytes(bytes.originals));
  }
  return needs;
}

MemoryNeeds RankNeeds::With(int max_sequences, int max_step_tokens) const {
  MemoryNeeds needs = common_;
  needs.max_sequences = plan_.sequences_of_group(max_sequences);
  runtime::TransformerOptions parts = parts_;
  parts.max_step_tokens = max_step_tokens;
  const memory::Amounts steps =
      StepBytesOf(device_, widest_, std::move(parts), plan_, num_threads_);
  for (int i = 0; i < memory::kNumUses; ++i) {
    const auto use = static_cast<memory::Use>(i);
    needs.fixed[use] += steps[use];
  }
  if (draws_tokens_) {
    needs.fixed[memory::Use::kProgram] +=
        StepSampling::BytesOf(widest_.vocab_size, max_sequences, num_threads_);
  }
  return needs;
}

Result<MemoryPlan> PlanMemoryOfRank(int rank, const device::DeviceBytes& device,
                                    const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats, int num_threads,
                                    memory::Ledger& ledger) {
  const Result<RankNeeds> needs =
      RankNeeds::Create(rank, device, spec, options, formats, num_threads);
  if (!needs) return needs.error();
  return PlanMemory(needs->With(options.max_sequences, options.max_step_tokens), ledger);
}

plan::Plan PagedPlan(plan::Plan plan) {
  plan.auto_pipeline = false;
  plan.pipeline = {.overlap = plan.pipeline.overlap};
  return plan;
}

}  // namespace convene::engine
