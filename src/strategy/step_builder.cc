#include "strategy/step_builder.h"

#include <map>
#include <utility>

namespace convene::strategy {

using schedule::Lane;
using schedule::LaneKind;
using schedule::TaskId;
using schedule::TaskKind;
using schedule::Work;

TaskId StepBuilder::Add(TaskKind kind, Lane lane, At at, Work work) {
  schedule_.tasks.push_back({.kind = kind,
                             .lane = lane,
                             .layer = at.layer,
                             .chunk = at.chunk,
                             .encoder = encoder_,
                             .cross = at.cross,
                             .work = std::move(work)});
  return static_cast<TaskId>(schedule_.tasks.size() - 1);
}

RankTasks StepBuilder::Compute(TaskKind kind, At at, const WorkOf& work,
                               const std::vector<RankTasks>& after) {
  RankTasks tasks;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    std::vector<TaskId> before;
    for (const RankTasks& others : after) before.push_back(others[rank]);
    tasks.push_back(ComputeOn(rank, kind, at, work(rank), std::move(before)));
  }
  return tasks;
}

TaskId StepBuilder::ComputeOn(int rank, TaskKind kind, At at, Work work,
                              std::vector<TaskId> after) {
  const TaskId id = Add(kind, {rank, LaneKind::kCompute}, at, std::move(work));
  schedule_.tasks[id].after = std::move(after);
  return id;
}

RankTasks StepBuilder::Collective(TaskKind kind, LaneKind lane, At at, const WorkOf& work,
                                  const std::vector<RankTasks>& after,
                                  const std::function<int(int rank)>& group_of) {
  RankTasks tasks;
  std::map<int, int> numbers;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const TaskId id = Add(kind, {rank, lane}, at, work(rank));
    const int group = group_of ? group_of(rank) : 0;
    if (!numbers.contains(group)) numbers[group] = num_collectives_++;
    schedule_.tasks[id].collective = numbers[group];
    for (const RankTasks& others : after) schedule_.tasks[id].after.push_back(others[rank]);
    tasks.push_back(id);
  }
  return tasks;
}

}  // namespace convene::strategy
