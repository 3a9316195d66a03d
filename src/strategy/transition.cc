#include "strategy/transition.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "schedule/hazards.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

// Of a layer's experts, how many `owner` has in `from` of those that `receiver` has in `to`.
double Common(const Roles& from, int owner, const Roles& to, int receiver, int num_experts) {
  const Part has = from.ExpertsOf(owner, num_experts);
  const Part gets = to.ExpertsOf(receiver, num_experts);
  const int end = std::min(has.first + has.size, gets.first + gets.size);
  const int count = end - std::max(has.first, gets.first);
  if (count <= 0) return 0;
  const ExpertRole& a = *from.of(owner).experts;
  const ExpertRole& b = *to.of(receiver).experts;
  const double slice_end = std::min((a.slice + 1.0) / a.slices, (b.slice + 1.0) / b.slices);
  const double slice_begin = std::max(double(a.slice) / a.slices, double(b.slice) / b.slices);
  return count * std::max(0.0, slice_end - slice_begin);
}

double Moved(const Roles& from, int sender, const Roles& to, int receiver, int num_experts) {
  return sender == receiver ? 0 : Common(from, sender, to, receiver, num_experts);
}

// What a rank writes to have a layer's experts, and how many weights of them it makes of int4.
schedule::Work LoadWork(const model::ModelSpec& spec, const model::MoeSpec& moe,
                        const ExpertLoads& loads, int rank) {
  const double elements = ExpertElements(spec, moe);
  const double all =
      loads.to.ExpertsOf(rank, moe.num_experts).size / double(loads.to.of(rank).experts->slices);
  const double kept = Common(loads.from, rank, loads.to, rank, moe.num_experts);
  schedule::Work work{.memory_bytes = schedule::Constant(all * elements * loads.bytes)};
  if (loads.rounded) work.flops = schedule::Constant((all - kept) * elements);
  return work;
}

bool Changes(const model::MoeSpec& moe, const ExpertLoads& loads, int rank) {
  return loads.from.ExpertsOf(rank, moe.num_experts) != loads.to.ExpertsOf(rank, moe.num_experts) ||
         loads.from.of(rank).experts->slices != loads.to.of(rank).experts->slices ||
         loads.from.of(rank).experts->slice != loads.to.of(rank).experts->slice;
}

}  // namespace

schedule::Schedule BuildTransition(const model::ModelSpec& spec, const Roles& from, const Roles& to,
                                   double bytes) {
  const int num_ranks = from.num_ranks();
  CHECK(to.num_ranks() == num_ranks, "{} ranks become {}", num_ranks, to.num_ranks());
  schedule::Schedule moves{.num_ranks = num_ranks};
  int num_collectives = 0;
  const auto add_layer = [&](const model::MoeSpec& moe, int layer) {
    const double expert_bytes = ExpertElements(spec, moe) * bytes;
    std::vector<schedule::Work> works(static_cast<size_t>(num_ranks));
    bool moves_something = false;
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (int other = 0; other < num_ranks; ++other) {
        const double sent = Moved(from, rank, to, other, moe.num_experts);
        if (sent > 0) works[rank].link_bytes.push_back({sent * expert_bytes, {.to = other}});
      }
      moves_something = moves_something || !works[rank].link_bytes.empty();
    }
    if (!moves_something) return;
    for (int rank = 0; rank < num_ranks; ++rank) {
      moves.tasks.push_back({.kind = schedule::TaskKind::kMoveExperts,
                             .lane = {rank, schedule::LaneKind::kSend},
                             .layer = layer,
                             .collective = num_collectives,
                             .work = std::move(works[rank])});
    }
    ++num_collectives;
  };
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const std::optional<model::MoeSpec>& moe = spec.layers[layer].moe;
    if (moe) add_layer(*moe, layer);
  }
  const Status valid = Validate(moves);
  CHECK(valid.ok(), "{}", valid.error().message);
  return moves;
}

schedule::Schedule BuildLoads(const model::ModelSpec& spec, const ExpertLoads& loads) {
  schedule::Schedule changes{.num_ranks = loads.from.num_ranks()};
  AppendLoads(spec, loads, /*only_rank=*/-1, changes);
  return changes;
}

void AppendLoads(const model::ModelSpec& spec, const ExpertLoads& loads, int only_rank,
                 schedule::Schedule& step) {
  using schedule::TaskId;
  CHECK(loads.to.num_ranks() == step.num_ranks && loads.from.num_ranks() == step.num_ranks,
        "{} ranks become {}", loads.from.num_ranks(), loads.to.num_ranks());
  const auto num_layers = static_cast<size_t>(spec.num_layers());
  std::vector<std::vector<TaskId>> uses(num_layers * static_cast<size_t>(step.num_ranks));
  const auto uses_of = [&](int rank, int layer) -> std::vector<TaskId>& {
    return uses[static_cast<size_t>(rank) * num_layers + static_cast<size_t>(layer)];
  };
  for (TaskId id = 0; id < std::ssize(step.tasks); ++id) {
    const schedule::Task& task = step.tasks[id];
    if (task.kind != schedule::TaskKind::kExperts || task.encoder) continue;
    uses_of(task.lane.rank, task.layer).push_back(id);
  }
  for (int rank = 0; rank < step.num_ranks; ++rank) {
    if (only_rank >= 0 && rank != only_rank) continue;
    for (int layer = 0; layer < spec.num_layers(); ++layer) {
      const std::optional<model::MoeSpec>& moe = spec.layers[layer].moe;
      if (!moe || !Changes(*moe, loads, rank)) continue;
      step.tasks.push_back({.kind = schedule::TaskKind::kLoadExperts,
                            .lane = {rank, schedule::LaneKind::kLoad},
                            .layer = layer,
                            .after = uses_of(rank, layer),
                            .work = LoadWork(spec, *moe, loads, rank)});
    }
  }
  const Status valid = Validate(step);
  CHECK(valid.ok(), "{}", valid.error().message);
  const Status ordered = CheckHazards(step);
  CHECK(ordered.ok(), "{}", ordered.error().message);
}

}  // namespace convene::strategy
