#include "engine/rank_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "base/units.h"
#include "device/step_inputs.h"
#include "engine/choose_pipeline.h"
#include "engine/step_sampling.h"
#include "hardware/memory_status.h"
#include "memory/page_reader.h"
#include "planner/pipeline_degree.h"
#include "planner/step_turns.h"
#include "runtime/expert_mover.h"
#include "runtime/spilled_kv.h"
#include "weights/expert_backup.h"
#include "weights/load_weights.h"
#include "weights/page_index.h"
#include "weights/weight_layout.h"

namespace convene::engine {

namespace {

// Of keys and values on a disk: bytes of a buffer, if memory has that much, and buffers.
constexpr uint64_t kSpillPartBytes = uint64_t{32} << 20;
constexpr int kFewestSpillBuffers = 2;

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

Result<MemoryNeeds> NeedsOfRank(int rank, const device::DeviceBytes& device,
                                const model::ModelSpec& spec, const LoadOptions& options,
                                const runtime::Formats& formats, int num_threads) {
  const weights::Share share = ShareOfRank(options.plan, rank);
  const Result<model::ModelSpec> local = weights::LocalSpec(spec, share, formats.weights);
  if (!local) return local.error();
  const Result<model::ModelSpec> widest = weights::WidestSpec(spec, share, formats.weights);
  if (!widest) return widest.error();
  if (device.supports != nullptr) {
    const Status can = device.supports(*widest, formats.activations);
    if (!can) return can.error();
  }
  const int context = ContextOf(spec, options);
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
  needs.fixed[memory::Use::kProgram] += ExpertBiasBytes(*local);
  if (rank == 0 && !options.gpu) {  // the rank that draws the tokens of all, on the host
    needs.fixed[memory::Use::kProgram] +=
        StepSampling::BytesOf(spec.vocab_size, options.max_sequences, num_threads);
  }
  const weights::ExpertRooms rooms = weights::RoomsOf(spec, formats.weights, share);
  needs.fixed[memory::Use::kWeights] =
      weights::PackedSizeBytes(*local, formats.weights, share, rooms);
  if (options.plan.experts_in_memory) {
    const weights::PagedSizes sizes =
        weights::PagedSizesOf(spec, formats.weights, {options.plan.layout, rank});
    needs.fixed[memory::Use::kWeights] = sizes.bytes_with(
        std::clamp(*options.plan.experts_in_memory, sizes.fewest_buffers, sizes.num_pages));
  }
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
  if (options.plan.loads_experts()) {
    if (Status fits = weights::ExpertBackup::CheckFormats(formats.weights); !fits) {
      return fits.error();
    }
    const auto bytes = weights::ExpertBackup::BytesOf(spec, formats.weights, share);
    needs.fixed[memory::Use::kWeights] += bytes.originals + bytes.backup;
    needs.fixed[memory::Use::kWorking] += bytes.working;
    needs.besides += fmt::format(
        "; the int4 backup of decode's experts takes {}, and what prefill's division needs to come "
        "back {}: without the transition int4 they are not needed",
        FormatBytes(bytes.backup), FormatBytes(bytes.originals));
  }
  return needs;
}

}  // namespace

Result<MemoryPlan> PlanMemoryOfRank(int rank, const device::DeviceBytes& device,
                                    const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats, int num_threads,
                                    memory::Ledger& ledger) {
  const Result<MemoryNeeds> needs = NeedsOfRank(rank, device, spec, options, formats, num_threads);
  if (!needs) return needs.error();
  return PlanMemory(*needs, ledger);
}

plan::Plan PagedPlan(plan::Plan plan) {
  plan.auto_pipeline = false;
  plan.pipeline = {.overlap = plan.pipeline.overlap};
  return plan;
}

namespace {

// Of keys and values in memory: one context, which is the least that is worked with.
uint64_t ContextBytes(const MemoryNeeds& needs) {
  const int blocks = needs.contexts_per_sequence *
                     ((needs.context + device::kKvBlockTokens - 1) / device::kKvBlockTokens);
  return needs.kv_block_bytes * static_cast<uint64_t>(blocks);
}

Error TooLittleForPages(const LoadOptions& options, int context, uint64_t least_bytes,
                        const memory::Ledger& ledger) {
  constexpr uint64_t kMib = uint64_t{1} << 20;
  // A budget is of all that the program has: what it has already counts, too, and varies a little.
  constexpr uint64_t kVariesBytes = 4 * kMib;
  const bool is_gpu = ledger.tier().kind == memory::TierKind::kDevice;
  const memory::Tier& tier = ledger.tier();
  const uint64_t besides = is_gpu ? 0 : tier.taken_bytes + kVariesBytes;
  const bool is_budget = tier.taken_bytes > 0 || (is_gpu && options.device_memory_budget);
  const std::string remedy =
      is_budget ? fmt::format("the least budget is {} {}MiB",
                              is_gpu ? "--device-memory-budget" : "--memory-budget",
                              (least_bytes + besides + kMib - 1) / kMib)
                : fmt::format("that limit has to be higher by {}",
                              FormatBytes(least_bytes + kVariesBytes - ledger.available_bytes()));
  return ResourceExhausted(fmt::format(
      "not enough {}: {} available ({}), and even with its experts {} this model "
      "needs {} for a context of {} tokens and steps of {}: {}; or lower --context or --chunk",
      tier.name(), FormatBytes(ledger.available_bytes()), tier.limited_by,
      is_gpu ? "in the host's memory" : "read from the disk", FormatBytes(least_bytes), context,
      options.max_step_tokens, remedy));
}

}  // namespace

Result<MemoryPlan> PlanPagedMemoryOf(const device::DeviceBytes& device,
                                     const model::ModelSpec& spec, const LoadOptions& asked,
                                     const runtime::Formats& formats, int num_threads,
                                     memory::Ledger& ledger) {
  const int rank = asked.group != nullptr ? asked.group->rank() : 0;
  LoadOptions options = asked;
  options.plan = PagedPlan(asked.plan);
  Result<MemoryNeeds> needs = NeedsOfRank(rank, device, spec, options, formats, num_threads);
  if (!needs) return needs.error();
  weights::PagedSizes sizes =
      weights::PagedSizesOf(spec, formats.weights, {options.plan.layout, rank});
  if (device.of_weights_beside != nullptr) {
    const Result<uint64_t> beside = device.of_weights_beside(spec, weights::DeviceLoans::kExperts);
    if (!beside) return beside.error();
    sizes.resident_bytes = *beside;
  }
  const int fewest = sizes.fewest_buffers;
  needs->fixed[memory::Use::kWeights] = sizes.bytes_with(fewest);
  const uint64_t context_bytes = ContextBytes(*needs);
  const uint64_t least_bytes = needs->fixed.total() + kProgramBytes + context_bytes;
  const uint64_t available_bytes = ledger.available_bytes();
  if (least_bytes > available_bytes) {
    return TooLittleForPages(options, needs->context, least_bytes, ledger);
  }
  if (options.batch_work) {
    // As many sequences as are asked for come first: whoever chose their number weighs them.
    needs->blocks_per_sequence = BlocksOfSequence(*options.batch_work);
  } else {
    // What is left, more contexts and more experts in memory have one half each at least; a plan
    // that wants fewer experts there leaves the rest to contexts.
    const uint64_t left_bytes = available_bytes - least_bytes;
    uint64_t of_experts = left_bytes / 2;
    if (const std::optional<int> planned = options.plan.experts_in_memory) {
      const int num_pages = std::clamp(*planned, fewest, std::max(fewest, sizes.num_pages));
      of_experts = std::min(of_experts, sizes.bytes_with(num_pages) - sizes.bytes_with(fewest));
    }
    needs->most_kv_bytes = context_bytes + left_bytes - of_experts;
  }
  Result<MemoryPlan> plan = PlanMemory(*needs, ledger);
  if (!plan) return plan;
  const uint64_t more = (available_bytes - plan->needed_bytes()) / sizes.page_bytes;
  const int most = std::max(fewest, options.plan.experts_in_memory.value_or(sizes.num_pages));
  plan->num_page_buffers =
      static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(std::min(most, sizes.num_pages)),
                                          more + static_cast<uint64_t>(fewest)));
  plan->has_all_pages = plan->num_page_buffers == sizes.num_pages;
  plan->bytes[memory::Use::kWeights] = sizes.bytes_with(plan->num_page_buffers);
  return plan;
}

namespace {

int BlocksFor(uint64_t bytes, uint64_t block_bytes) {
  return static_cast<int>(
      std::min<uint64_t>(bytes / std::max<uint64_t>(block_bytes, 1), INT32_MAX));
}

// Buffers that keep a disk busy while one of them is computed with, and so many that a layer's keys
// and values can be on their way while the experts before it are computed: within so many bytes,
// but the fewest of a context each.
void ChooseSpillBuffers(uint64_t bytes, uint64_t slot_bytes, int context_blocks, int num_blocks,
                        MemoryPlan& plan) {
  const int part = std::min(BlocksFor(kSpillPartBytes, slot_bytes),
                            BlocksFor(bytes / kFewestSpillBuffers, slot_bytes));
  plan.spill_part_blocks = std::clamp(part, context_blocks, std::max(context_blocks, num_blocks));
  const uint64_t part_bytes = slot_bytes * static_cast<uint64_t>(plan.spill_part_blocks);
  const int of_layer = num_blocks / plan.spill_part_blocks + kFewestSpillBuffers;
  plan.spill_depth = std::clamp(BlocksFor(bytes, part_bytes), kFewestSpillBuffers, of_layer);
}

}  // namespace

Result<MemoryPlan> PlanSpilledMemoryOf(const device::DeviceBytes& device,
                                       const model::ModelSpec& spec, const LoadOptions& asked,
                                       const runtime::Formats& formats, int num_threads,
                                       const SpillWish& wish, memory::Ledger& ledger) {
  LoadOptions options = asked;
  options.plan = PagedPlan(asked.plan);
  const Result<MemoryNeeds> needs =
      NeedsOfRank(/*rank=*/0, device, spec, options, formats, num_threads);
  if (!needs) return needs.error();
  const weights::PagedSizes sizes =
      weights::PagedSizesOf(spec, formats.weights, {options.plan.layout, 0});
  const uint64_t slot_bytes = memory::DirectBytes(device.of_layer_block(spec, formats.kv));
  const int context_blocks = (needs->context + device::kKvBlockTokens - 1) / device::kKvBlockTokens;
  const int num_blocks =
      std::max(context_blocks, options.max_sequences * BlocksOfSequence(*options.batch_work));

  MemoryPlan plan = {.bytes = needs->fixed,
                     .available_bytes = ledger.available_bytes(),
                     .context = needs->context,
                     .spill_part_blocks = context_blocks,
                     .spill_depth = kFewestSpillBuffers};
  plan.bytes[memory::Use::kWeights] = sizes.bytes_with(sizes.fewest_buffers);
  plan.bytes[memory::Use::kProgram] += kProgramBytes;
  uint64_t& kv_bytes = plan.bytes[memory::Use::kKvCache];
  kv_bytes = 0;
  const auto left = [&] { return plan.available_bytes - plan.bytes.total(); };
  const auto buffers_of = [&](int blocks, int depth) {
    return runtime::SpilledKv::BufferBytes({.part_blocks = blocks, .depth = depth}, slot_bytes);
  };
  const std::optional<plan::SpilledKv>& planned = options.plan.spilled_kv;
  const uint64_t buffered_bytes = buffers_of(context_blocks, kFewestSpillBuffers);
  const uint64_t least_bytes = plan.bytes.total() + buffered_bytes;
  if (least_bytes > plan.available_bytes) {
    // Where no plan wants them on the disk, keys and values of a context stay in memory if that
    // takes less than the buffers do.
    const uint64_t kv = planned ? buffered_bytes : std::min(buffered_bytes, ContextBytes(*needs));
    return TooLittleForPages(options, needs->context, plan.bytes.total() + kv, ledger);
  }
  if (planned) {
    plan.spill_part_blocks = std::max(planned->buffer_blocks, context_blocks);
    plan.spill_depth = planned->buffers;
  } else {
    ChooseSpillBuffers(left() / 4, slot_bytes, context_blocks, num_blocks, plan);
  }
  const uint64_t buffer_bytes = buffers_of(plan.spill_part_blocks, plan.spill_depth);
  if (buffer_bytes > left()) {
    return ResourceExhausted(fmt::format(
        "not enough {}: the plan has {} with {} blocks each for keys and values (spilled_kv), "
        "which take {}, and {} are left beside the rest: give more --memory-budget, or make "
        "another plan with convene plan",
        ledger.tier().name(), FormatCount(static_cast<uint64_t>(plan.spill_depth), "buffer"),
        plan.spill_part_blocks, FormatBytes(buffer_bytes), FormatBytes(left())));
  }
  kv_bytes = buffer_bytes;

  const int most_kept =
      planned ? planned->blocks_in_memory
              : BlocksFor(static_cast<uint64_t>(wish.kv_share * static_cast<double>(left())),
                          needs->kv_block_bytes);
  const auto keep = [&](int blocks) {
    const int more = std::min(
        {blocks, num_blocks - 1 - plan.num_kv_blocks, BlocksFor(left(), needs->kv_block_bytes)});
    plan.num_kv_blocks += more;
    kv_bytes += needs->kv_block_bytes * static_cast<uint64_t>(more);
  };
  keep(most_kept);
  const int most =
      std::max(sizes.fewest_buffers,
               std::min(options.plan.experts_in_memory.value_or(sizes.num_pages), sizes.num_pages));
  plan.num_page_buffers = static_cast<int>(
      std::min<int64_t>(most, int64_t{sizes.fewest_buffers} + BlocksFor(left(), sizes.page_bytes)));
  plan.has_all_pages = plan.num_page_buffers == sizes.num_pages;
  plan.bytes[memory::Use::kWeights] = sizes.bytes_with(plan.num_page_buffers);
  if (!planned && plan.num_page_buffers == most) keep(num_blocks);
  plan.num_spilled_blocks = num_blocks - plan.num_kv_blocks;
  const uint64_t file_bytes = runtime::SpilledKv::FileBytes(
      plan.num_spilled_blocks, static_cast<int>(spec.layers.size()), slot_bytes);
  if (file_bytes > wish.disk_bytes) {
    return ResourceExhausted(
        fmt::format("keys and values of {} sequences take {} of the disk, "
                    "which has {}",
                    options.max_sequences, FormatBytes(file_bytes), FormatBytes(wish.disk_bytes)));
  }
  return plan;
}

}  // namespace convene::engine
