#include "cost/all_reduces.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace convene::cost {
namespace {

using schedule::Schedule;
using schedule::SizeKind;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;

// Whether each rank of an exchange of experts computes all experts of all rows, slices of them: all
// rows then come to it. Where ranks have whole experts, a row's are on one rank each.
bool IsOfSlices(const Schedule& schedule, std::span<const TaskId> tasks,
                const model::ModelSpec& spec, const Sizes& sizes) {
  const Task& first = schedule.tasks[tasks.front()];
  if (first.encoder || first.layer < 0 || !spec.layers[first.layer].moe) return false;
  const auto of = [&](SizeKind kind) {
    std::vector<double> by_rank;
    for (const TaskId id : tasks) {
      by_rank.push_back(sizes({.kind = kind,
                               .layer = kind == SizeKind::kSlots ? first.layer : -1,
                               .chunk = kind == SizeKind::kSlots ? first.chunk : -1,
                               .from = schedule.tasks[id].lane.rank,
                               .micro_batch = first.micro_batch}));
    }
    return by_rank;
  };
  const std::vector<double> slots = of(SizeKind::kSlots);
  // In the last layer only rows whose logits are wanted.
  return std::ranges::any_of(std::array{SizeKind::kRows, SizeKind::kWanted}, [&](SizeKind kind) {
    const std::vector<double> rows = of(kind);
    const double all = std::accumulate(rows.begin(), rows.end(), 0.0);
    const double expected = all * spec.layers[first.layer].moe->top_k;
    return expected > 0 && std::ranges::all_of(slots, [&](double of_rank) {
             return std::abs(of_rank - expected) <= 1e-6 * expected;
           });
  });
}

std::vector<int> RanksOf(const Schedule& schedule, std::span<const TaskId> tasks) {
  std::vector<int> ranks;
  for (const TaskId id : tasks) ranks.push_back(schedule.tasks[id].lane.rank);
  std::ranges::sort(ranks);
  return ranks;
}

// What a rank has done since it scattered partial sums.
struct SinceScatter {
  int scatter = -1;  // -1: something that needs no sums of all rows, or nothing yet
  int counts = -1;
  std::vector<TaskId> passes = {};
};

}  // namespace

bool IsGather(const Schedule& schedule, std::span<const TaskId> tasks, const model::ModelSpec& spec,
              const Sizes& sizes) {
  const TaskKind kind = schedule.tasks[tasks.front()].kind;
  return kind == TaskKind::kGatherNormed ||
         (kind == TaskKind::kDispatch && IsOfSlices(schedule, tasks, spec, sizes));
}

bool IsScatter(const Schedule& schedule, std::span<const TaskId> tasks,
               const model::ModelSpec& spec, const Sizes& sizes) {
  const TaskKind kind = schedule.tasks[tasks.front()].kind;
  return kind == TaskKind::kScatterSums ||
         (kind == TaskKind::kCombine && IsOfSlices(schedule, tasks, spec, sizes));
}

std::vector<AllReduce> FindAllReduces(const Schedule& schedule,
                                      const schedule::ActivityGraph& graph,
                                      const model::ModelSpec& spec, const Sizes& sizes) {
  // By activity, as the first of its tasks has found out.
  std::map<int, std::pair<bool, bool>> known;
  const auto kinds_of = [&](int activity) {
    const auto [found, is_new] = known.try_emplace(activity);
    if (is_new) {
      const auto tasks = graph.tasks_of(activity);
      found->second = {IsScatter(schedule, tasks, spec, sizes),
                       IsGather(schedule, tasks, spec, sizes)};
    }
    return found->second;
  };
  std::map<std::tuple<int, int, bool>, SinceScatter> since_of;  // by rank, micro-batch and stack
  std::map<int, AllReduce> by_gather;
  std::map<int, int> num_ranks;  // of a gather that have come from the same scatter
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    const int activity = graph.activity_of[id];
    SinceScatter& since = since_of[{task.lane.rank, task.micro_batch, task.encoder}];
    switch (task.kind) {
      case TaskKind::kAddPartials:
      case TaskKind::kFinish:
        continue;
      case TaskKind::kNormalize:
      case TaskKind::kRoute:
        since.passes.push_back(static_cast<TaskId>(id));
        continue;
      case TaskKind::kCounts:
        since.counts = activity;
        continue;
      default:
        break;
    }
    const SinceScatter before = std::exchange(since, {});
    if (task.collective < 0) continue;
    const auto [is_scatter, is_gather] = kinds_of(activity);
    if (is_scatter) {
      since.scatter = activity;
      continue;
    }
    if (before.scatter < 0 || !is_gather) continue;
    AllReduce& found =
        by_gather
            .try_emplace(activity,
                         AllReduce{.scatter = before.scatter, .gather = activity, .counts = -1})
            .first->second;
    if (found.scatter != before.scatter) continue;
    found.counts = std::max(found.counts, before.counts);
    found.passes.insert(found.passes.end(), before.passes.begin(), before.passes.end());
    ++num_ranks[activity];
  }
  std::vector<AllReduce> all;
  for (auto& [gather, found] : by_gather) {
    const auto tasks = graph.tasks_of(gather);
    if (num_ranks[gather] != static_cast<int>(tasks.size())) continue;
    if (RanksOf(schedule, tasks) != RanksOf(schedule, graph.tasks_of(found.scatter))) continue;
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace convene::cost
