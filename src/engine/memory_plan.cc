#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "device/step_inputs.h"

namespace convene::engine {

using memory::Use;

Result<MemoryPlan> PlanMemory(const MemoryNeeds& needs, memory::Ledger& ledger) {
  const int blocks_per_context =
      needs.contexts_per_sequence *
      ((needs.context + device::kKvBlockTokens - 1) / device::kKvBlockTokens);
  const int blocks_per_sequence =
      needs.blocks_per_sequence > 0 ? needs.blocks_per_sequence : blocks_per_context;
  const int64_t wanted_blocks =
      std::max<int64_t>(blocks_per_context, int64_t{blocks_per_sequence} * needs.max_sequences);

  MemoryPlan plan = {
      .bytes = needs.fixed, .available_bytes = ledger.available_bytes(), .context = needs.context};
  plan.bytes[Use::kProgram] += kProgramBytes;
  const uint64_t kv_room =
      std::min(needs.most_kv_bytes,
               plan.available_bytes - std::min(plan.available_bytes, plan.bytes.total()));
  const auto fitting_blocks = static_cast<int64_t>(
      std::min<uint64_t>(kv_room / std::max<uint64_t>(needs.kv_block_bytes, 1), INT32_MAX));
  plan.num_kv_blocks =
      static_cast<int>(std::clamp<int64_t>(fitting_blocks, blocks_per_context, wanted_blocks));
  plan.bytes[Use::kKvCache] = static_cast<uint64_t>(plan.num_kv_blocks) * needs.kv_block_bytes;

  std::vector<memory::Reservation> reservations;
  for (int i = 0; i < memory::kNumUses; ++i) {
    const auto use = static_cast<Use>(i);
    Result<memory::Reservation> reserved = ledger.Reserve(use, plan.bytes[use]);
    if (!reserved) {
      const bool is_gpu = ledger.tier().kind == memory::TierKind::kDevice;
      return ResourceExhausted(fmt::format(
          "not enough {}: {} ({}), for a context of {} tokens; lower --context or --chunk, {}{}{}",
          ledger.tier().name(), plan.Describe(), ledger.tier().limited_by, needs.context,
          is_gpu ? "or leave --device out, and the CPU computes"
                 : "use --weights int8 or int4, or free memory",
          needs.besides.empty() ? "" : "; ", needs.besides));
    }
    reservations.push_back(*std::move(reserved));
  }
  return plan;
}

}  // namespace convene::engine
