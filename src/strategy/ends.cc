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

// Of the wanted rows of all ranks, each times `factor`.
schedule::Amount OfWanted(const StepBuilder& step, double factor) {
  schedule::Amount amount;
  const int micro_batches = step.options().pipeline.micro_batches;
  for (int i = 0; i < micro_batches; ++i) {
    for (int rank = 0; rank < step.num_ranks(); ++rank) {
      if (!step.roles().of(rank).gives_output()) continue;
      amount.push_back(
          {factor,
           {.kind = SizeKind::kWanted, .from = rank, .micro_batch = micro_batches > 1 ? i : -1}});
    }
  }
  return amount;
}

// Each rank has the logits of its tokens of the vocabulary, which rank 0 puts together: of so many
// rows at a time as a device computes at once.
void AddDividedHead(StepBuilder& step, const std::vector<RankTasks>& after) {
  const model::ModelSpec& spec = step.spec();
  const StepOptions& options = step.options();
  const double share = 1.0 / options.head_chunks;
  const auto tokens_of = [&](int rank) {
    return double(step.roles().of(rank).head->TokensOf(spec.vocab_size).size);
  };
  const auto head = [&](int rank) {
    const double elements = spec.hidden_size * tokens_of(rank);
    return Work{.flops = OfWanted(step, 2 * elements * share),
                .memory_bytes = {{elements * options.bytes.weights}}};
  };
  const auto gather = [&](int rank) {
    Work work{.link_bytes = schedule::Constant(double{kStatusBytes} * (step.num_ranks() - 1))};
    if (rank == 0) return work;
    const double row_bytes = options.largest_suffices ? kLargestBytes : 4 * tokens_of(rank);
    for (const schedule::Term& term : OfWanted(step, row_bytes * share)) {
      work.link_bytes.push_back(term);
    }
    return work;
  };
  // Each logit is looked at once, or copied.
  const auto join = [&](int) {
    const double row_bytes = options.largest_suffices ? 4 * tokens_of(0) : 8.0 * spec.vocab_size;
    return Work{.memory_bytes = OfWanted(step, row_bytes * share)};
  };
  RankTasks gathered;
  RankTasks joined;
  for (int chunk = 0; chunk < options.head_chunks; ++chunk) {
    const StepBuilder::At at{.chunk = chunk};
    const RankTasks computed =
        step.Compute(kHead, at, head, chunk == 0 ? after : std::vector<RankTasks>{gathered});
    gathered =
        step.Collective(kGatherLogits, schedule::LaneKind::kSend, at, gather, {computed, joined});
    step.UseRanks(0, 0);
    joined = step.Compute(kJoinLogits, at, join, {gathered});
    step.UseAllRanks();
  }
}

}  // namespace

RankTasks AddEmbedding(StepBuilder& step) {
  return step.Compute(kEmbed, {}, [&](int rank) { return OfRows(step, rank); });
}

RankTasks AddFinalNorm(StepBuilder& step) {
  return step.Compute(kNormalize, {}, [&](int rank) { return OfRows(step, rank); });
}

RankTasks GatherWanted(StepBuilder& step, double row_bytes, const RankTasks& after) {
  // The output of an encoder is shown by rank 0.
  const bool divides = step.roles().divides_head() && !step.is_encoder();
  const auto to_head = [&](int rank) {
    Work work{.link_bytes = schedule::Constant(double{kStatusBytes} * (step.num_ranks() - 1))};
    const Role& role = step.roles().of(rank);
    const int num_receivers = divides ? step.num_ranks() - 1 : rank == 0 ? 0 : 1;
    if (role.gives_output() && num_receivers > 0) {
      work.link_bytes.push_back(
          {row_bytes * num_receivers, {.kind = SizeKind::kWanted, .from = rank}});
    }
    return work;
  };
  return step.Collective(kGatherRows, schedule::LaneKind::kSend, {}, to_head, {after});
}

void AddHead(StepBuilder& step, const std::vector<RankTasks>& after) {
  if (step.roles().divides_head()) return AddDividedHead(step, after);
  const double elements = double{1} * step.spec().hidden_size * step.spec().vocab_size;
  const auto work = [&] {
    return Work{.flops = OfWanted(step, 2 * elements),
                .memory_bytes = {{elements * step.options().bytes.weights}}};
  };
  for (int rank = 0; rank < step.num_ranks(); ++rank) {
    if (step.roles().of(rank).has_head()) step.ComputeOn(rank, kHead, {}, work, after);
  }
}

}  // namespace convene::strategy
