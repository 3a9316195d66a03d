// The choices of a plan that have names, with their texts in its file and on command lines. What
// goes together is plan.h.
#pragma once

#include <string_view>

#include "base/result.h"
#include "strategy/step.h"

namespace convene::plan {

// Of rows on their way between ranks. kAuto: kF32 where all ranks are on one host, kBf16 otherwise.
// kFp8: of those that go to experts; sums come back as bf16. kFp8Both: the experts' sums, too;
// attention's stay bf16.
enum class Wire { kAuto, kF32, kBf16, kFp8, kFp8Both };
bool Rounds(Wire wire);            // whatever the ranks; kAuto may, too
std::string_view Name(Wire wire);  // "auto", "f32", "bf16", "fp8", "fp8-both"
Result<Wire> WireFromName(std::string_view name);

// In which order the products of a layer's experts run (kernels/grouped_gemm.h).
enum class GemmChoice { kAuto, kGrouped, kDense };
std::string_view Name(GemmChoice gemm);  // "auto", "grouped", "dense"
Result<GemmChoice> GemmFromName(std::string_view name);

// How a rank gets the experts that it has in decode and not in prefill. It never changes what the
// way back gives: the bytes of before.
enum class Transition {
  kReshard,  // from the ranks that have them, as they are
  // From a backup of its own in int4, with a scale per group, while the last prompts are computed:
  // logits change (weights/expert_backup.h).
  kInt4,
};
std::string_view Name(Transition transition);  // "reshard", "int4"
Result<Transition> TransitionFromName(std::string_view name);

// How ranks with attention and ranks with experts take turns, where the layout disaggregates
// (strategy/disaggregated_experts.h); what of its pipeline makes it one of them.
enum class DisaggregatedStrategy {
  kNaive,   // one micro-batch in one chunk: nothing runs beside an exchange or the other ranks
  kPpPipe,  // micro-batches of one chunk, dispatched after their shared expert
  kFine,    // micro-batches of chunks, dispatched before their shared expert, in either order
};
DisaggregatedStrategy StrategyOf(const strategy::Pipeline& pipeline);
std::string_view Name(DisaggregatedStrategy chosen);  // "naive", "pppipe", "fine"
Result<DisaggregatedStrategy> DisaggregatedStrategyFromName(std::string_view name);

std::string_view Name(strategy::AttentionOrder order);  // "asas", "aass"
Result<strategy::AttentionOrder> OrderFromName(std::string_view name);

std::string_view Name(strategy::ChunkCut cut);  // "tokens", "experts"
Result<strategy::ChunkCut> CutFromName(std::string_view name);

}  // namespace convene::plan
