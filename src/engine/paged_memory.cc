#include "engine/paged_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "device/step_inputs.h"
#include "memory/page_reader.h"
#include "runtime/spilled_kv.h"

namespace convene::engine {
namespace {

// Of keys and values on a disk: bytes of a buffer, if memory has that much, and buffers.
constexpr uint64_t kSpillPartBytes = uint64_t{32} << 20;
constexpr int kFewestSpillBuffers = 2;

int BlocksOfContext(const MemoryNeeds& needs) {
  return (needs.context + device::kKvBlockTokens - 1) / device::kKvBlockTokens;
}

// Of keys and values in memory: one context, which is the least that is worked with.
uint64_t ContextBytes(const MemoryNeeds& needs) {
  return needs.kv_block_bytes *
         static_cast<uint64_t>(needs.contexts_per_sequence * BlocksOfContext(needs));
}

Error TooLittleForPages(bool has_device_budget, int context, int max_step_tokens,
                        uint64_t least_bytes, const memory::Ledger& ledger) {
  constexpr uint64_t kMib = uint64_t{1} << 20;
  // A budget is of all that the program has: what it has already counts, too, and varies a little.
  constexpr uint64_t kVariesBytes = 4 * kMib;
  const memory::Tier& tier = ledger.tier();
  const bool is_gpu = tier.kind == memory::TierKind::kDevice;
  const uint64_t besides = is_gpu ? 0 : tier.taken_bytes + kVariesBytes;
  const bool is_budget = tier.taken_bytes > 0 || (is_gpu && has_device_budget);
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
      max_step_tokens, remedy));
}

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

PagedMemory::PagedMemory(RankNeeds needs, const LoadOptions& options)
    : needs_(std::move(needs)),
      plan_(options.plan),
      work_(options.batch_work),
      has_device_budget_(options.device_memory_budget.has_value()) {}

Result<PagedMemory> PagedMemory::Create(const device::DeviceBytes& device,
                                        const model::ModelSpec& spec, const LoadOptions& asked,
                                        const runtime::Formats& formats, int num_threads) {
  const int rank = asked.group != nullptr ? asked.group->rank() : 0;
  LoadOptions options = asked;
  options.plan = PagedPlan(asked.plan);
  Result<RankNeeds> needs = RankNeeds::Create(rank, device, spec, options, formats, num_threads);
  if (!needs) return needs.error();
  PagedMemory memory(*std::move(needs), options);
  memory.sizes_ = weights::PagedSizesOf(spec, formats.weights, {options.plan.layout, rank});
  if (device.of_weights_beside != nullptr) {
    const Result<uint64_t> beside = device.of_weights_beside(spec, weights::DeviceLoans::kExperts);
    if (!beside) return beside.error();
    memory.sizes_.resident_bytes = *beside;
  }
  memory.slot_bytes_ = memory::DirectBytes(device.of_layer_block(spec, formats.kv));
  memory.num_layers_ = static_cast<int>(spec.layers.size());
  return memory;
}

Result<MemoryPlan> PagedMemory::InMemory(int max_sequences, int max_step_tokens,
                                         memory::Ledger& ledger) const {
  MemoryNeeds needs = needs_.With(max_sequences, max_step_tokens);
  const int fewest = sizes_.fewest_buffers;
  needs.fixed[memory::Use::kWeights] = sizes_.bytes_with(fewest);
  const uint64_t context_bytes = ContextBytes(needs);
  const uint64_t least_bytes = needs.fixed.total() + kProgramBytes + context_bytes;
  const uint64_t available_bytes = ledger.available_bytes();
  if (least_bytes > available_bytes) {
    return TooLittleForPages(has_device_budget_, needs.context, max_step_tokens, least_bytes,
                             ledger);
  }
  if (work_) {
    // As many sequences as are asked for come first: whoever chose their number weighs them.
    needs.blocks_per_sequence = BlocksOfSequence(*work_);
  } else {
    // What is left, more contexts and more experts in memory have one half each at least; a plan
    // that wants fewer experts there leaves the rest to contexts.
    const uint64_t left_bytes = available_bytes - least_bytes;
    uint64_t of_experts = left_bytes / 2;
    if (const std::optional<int> planned = plan_.experts_in_memory) {
      const int num_pages = std::clamp(*planned, fewest, std::max(fewest, sizes_.num_pages));
      of_experts = std::min(of_experts, sizes_.bytes_with(num_pages) - sizes_.bytes_with(fewest));
    }
    needs.most_kv_bytes = context_bytes + left_bytes - of_experts;
  }
  Result<MemoryPlan> plan = PlanMemory(needs, ledger);
  if (!plan) return plan;
  const uint64_t more = (available_bytes - plan->needed_bytes()) / sizes_.page_bytes;
  const int most = std::max(fewest, plan_.experts_in_memory.value_or(sizes_.num_pages));
  plan->num_page_buffers =
      static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(std::min(most, sizes_.num_pages)),
                                          more + static_cast<uint64_t>(fewest)));
  plan->has_all_pages = plan->num_page_buffers == sizes_.num_pages;
  plan->bytes[memory::Use::kWeights] = sizes_.bytes_with(plan->num_page_buffers);
  return plan;
}

Result<MemoryPlan> PagedMemory::Spilled(int max_sequences, int max_step_tokens, double kv_share,
                                        memory::Ledger& ledger) const {
  const MemoryNeeds needs = needs_.With(max_sequences, max_step_tokens);
  const int context_blocks = BlocksOfContext(needs);
  const int num_blocks = std::max(context_blocks, max_sequences * BlocksOfSequence(*work_));

  MemoryPlan plan = {.bytes = needs.fixed,
                     .available_bytes = ledger.available_bytes(),
                     .context = needs.context,
                     .spill_part_blocks = context_blocks,
                     .spill_depth = kFewestSpillBuffers};
  plan.bytes[memory::Use::kWeights] = sizes_.bytes_with(sizes_.fewest_buffers);
  plan.bytes[memory::Use::kProgram] += kProgramBytes;
  uint64_t& kv_bytes = plan.bytes[memory::Use::kKvCache];
  kv_bytes = 0;
  const auto left = [&] { return plan.available_bytes - plan.bytes.total(); };
  const auto buffers_of = [&](int blocks, int depth) {
    return runtime::SpilledKv::BufferBytes({.part_blocks = blocks, .depth = depth}, slot_bytes_);
  };
  const std::optional<plan::SpilledKv>& planned = plan_.spilled_kv;
  const uint64_t buffered_bytes = buffers_of(context_blocks, kFewestSpillBuffers);
  const uint64_t least_bytes = plan.bytes.total() + buffered_bytes;
  if (least_bytes > plan.available_bytes) {
    // Where no plan wants them on the disk, keys and values of a context stay in memory if that
    // takes less than the buffers do.
    const uint64_t kv = planned ? buffered_bytes : std::min(buffered_bytes, ContextBytes(needs));
    return TooLittleForPages(has_device_budget_, needs.context, max_step_tokens,
                             plan.bytes.total() + kv, ledger);
  }
  if (planned) {
    plan.spill_part_blocks = std::max(planned->buffer_blocks, context_blocks);
    plan.spill_depth = planned->buffers;
  } else {
    ChooseSpillBuffers(left() / 4, slot_bytes_, context_blocks, num_blocks, plan);
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
              : BlocksFor(static_cast<uint64_t>(kv_share * static_cast<double>(left())),
                          needs.kv_block_bytes);
  const auto keep = [&](int blocks) {
    const int more = std::min(
        {blocks, num_blocks - 1 - plan.num_kv_blocks, BlocksFor(left(), needs.kv_block_bytes)});
    plan.num_kv_blocks += more;
    kv_bytes += needs.kv_block_bytes * static_cast<uint64_t>(more);
  };
  keep(most_kept);
  const int most =
      std::max(sizes_.fewest_buffers,
               std::min(plan_.experts_in_memory.value_or(sizes_.num_pages), sizes_.num_pages));
  plan.num_page_buffers = static_cast<int>(std::min<int64_t>(
      most, int64_t{sizes_.fewest_buffers} + BlocksFor(left(), sizes_.page_bytes)));
  plan.has_all_pages = plan.num_page_buffers == sizes_.num_pages;
  plan.bytes[memory::Use::kWeights] = sizes_.bytes_with(plan.num_page_buffers);
  if (!planned && plan.num_page_buffers == most) keep(num_blocks);
  plan.num_spilled_blocks = num_blocks - plan.num_kv_blocks;
  plan.spill_file_bytes =
      runtime::SpilledKv::FileBytes(plan.num_spilled_blocks, num_layers_, slot_bytes_);
  return plan;
}

Result<MemoryPlan> PlanPagedMemoryOf(const device::DeviceBytes& device,
                                     const model::ModelSpec& spec, const LoadOptions& options,
                                     const runtime::Formats& formats, int num_threads,
                                     memory::Ledger& ledger) {
  const Result<PagedMemory> memory =
      PagedMemory::Create(device, spec, options, formats, num_threads);
  if (!memory) return memory.error();
  return memory->InMemory(options.max_sequences, options.max_step_tokens, ledger);
}

Result<MemoryPlan> PlanSpilledMemoryOf(const device::DeviceBytes& device,
                                       const model::ModelSpec& spec, const LoadOptions& options,
                                       const runtime::Formats& formats, int num_threads,
                                       double kv_share, memory::Ledger& ledger) {
  const Result<PagedMemory> memory =
      PagedMemory::Create(device, spec, options, formats, num_threads);
  if (!memory) return memory.error();
  return memory->Spilled(options.max_sequences, options.max_step_tokens, kv_share, ledger);
}

}  // namespace convene::engine
