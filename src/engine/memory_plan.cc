#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "runtime/transformer.h"

namespace convene::engine {
namespace {

// Tokenizer, thread stacks, the program itself and what the allocator holds back.
constexpr uint64_t kOverheadBytes = uint64_t{32} << 20;

}  // namespace

std::string MemoryPlan::Describe() const {
  return fmt::format("needed {} (weights {}, KV cache {}, working memory {}), available {}",
                     FormatBytes(needed_bytes()), FormatBytes(weights_bytes), FormatBytes(kv_bytes),
                     FormatBytes(working_bytes), FormatBytes(available_bytes));
}

Result<MemoryPlan> PlanMemory(const MemoryRequest& request) {
  const int blocks_per_context =
      request.contexts_per_sequence *
      ((request.context + runtime::kKvBlockTokens - 1) / runtime::kKvBlockTokens);
  const int64_t wanted_blocks = int64_t{blocks_per_context} * request.max_sequences;

  const uint64_t fixed_bytes = request.weights_bytes + request.activation_bytes + kOverheadBytes;
  const uint64_t kv_room =
      request.available_bytes > fixed_bytes ? request.available_bytes - fixed_bytes : 0;
  const auto fitting_blocks = static_cast<int64_t>(
      std::min<uint64_t>(kv_room / std::max<uint64_t>(request.kv_block_bytes, 1), INT32_MAX));
  const int64_t num_blocks = std::clamp<int64_t>(fitting_blocks, blocks_per_context, wanted_blocks);

  const MemoryPlan plan = {
      .weights_bytes = request.weights_bytes,
      .kv_bytes = static_cast<uint64_t>(num_blocks) * request.kv_block_bytes,
      .working_bytes = request.activation_bytes + kOverheadBytes,
      .available_bytes = request.available_bytes,
      .context = request.context,
      .num_kv_blocks = static_cast<int>(num_blocks),
  };
  if (plan.needed_bytes() > plan.available_bytes) {
    return ResourceExhausted(fmt::format(
        "not enough memory: {} ({}), for a context of {} tokens; lower --context or --chunk, use "
        "--weights int8 or int4, or free memory",
        plan.Describe(), request.limited_by, request.context));
  }
  return plan;
}

}  // namespace convene::engine
