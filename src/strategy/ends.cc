#include "strategy/ends.h"

namespace convene::strategy {

using schedule::SizeKind;
using schedule::Work;
using enum schedule::TaskKind;

namespace {

// Something done to each own row, with three passes of bf16 and float over it.
Work OfRows(const StepBuilder& step, int rank) {
  const double hidden = step.spec().hidden_size;
  return {.memory_bytes = {{hidden * 6, {.kind = SizeKind::kRows, .from = rank}}}};
}

}  // namespace

RankTasks AddEmbedding(StepBuilder& step) {
  return step.Compute(kEmbed, {}, [&](int rank) { return OfRows(step, rank); });
}

RankTasks AddFinalNorm(StepBuilder& step) {
  return step.Compute(kNormalize, {}, [&](int rank) { return OfRows(step, rank); });
}

RankTasks GatherWanted(StepBuilder& step, double row_bytes, const RankTasks& after) {
  const auto to_head = [&](int rank) {
    Work work{.link_bytes = schedule::Constant(double{kStatusBytes} * (step.num_ranks() - 1))};
    const Role& role = step.roles().of(rank);
    if (!role.has_head && role.gives_output()) {
      work.link_bytes.push_back({row_bytes, {.kind = SizeKind::kWanted, .from = rank}});
    }
    return work;
  };
  return step.Collective(kGatherRows, schedule::LaneKind::kSend, {}, to_head, {after});
}

void AddHead(StepBuilder& step, const std::vector<RankTasks>& after) {
  const double elements = double{1} * step.spec().hidden_size * step.spec().vocab_size;
  const int micro_batches = step.options().pipeline.micro_batches;
  const auto work = [&] {
    Work head{.memory_bytes = {{elements * step.options().bytes.weights}}};
    for (int i = 0; i < micro_batches; ++i) {
      for (int rank = 0; rank < step.num_ranks(); ++rank) {
        if (!step.roles().of(rank).gives_output()) continue;
        head.flops.push_back(
            {2 * elements,
             {.kind = SizeKind::kWanted, .from = rank, .micro_batch = micro_batches > 1 ? i : -1}});
      }
    }
    return head;
  };
  for (int rank = 0; rank < step.num_ranks(); ++rank) {
    if (step.roles().of(rank).has_head) step.ComputeOn(rank, kHead, {}, work, after);
  }
}

}  // namespace convene::strategy
