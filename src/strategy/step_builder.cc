#include "strategy/step_builder.h"

#include <map>
#include <utility>

#include "base/check.h"
#include "schedule/hazards.h"

namespace convene::strategy {

using schedule::LaneKind;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;
using schedule::Work;

namespace {

// Sizes of a micro-batch's work are its own.
void SetMicroBatch(int micro_batch, Work& work) {
  for (schedule::Amount* amount :
       {&work.flops, &work.memory_bytes, &work.link_bytes, &work.disk_bytes}) {
    for (schedule::Term& term : *amount) {
      if (term.size.kind != schedule::SizeKind::kOne) term.size.micro_batch = micro_batch;
    }
  }
}

}  // namespace

StepBuilder::StepBuilder(const model::ModelSpec& spec, const StepOptions& options, bool encoder)
    : spec_(spec), options_(options), encoder_(encoder), tasks_(&schedule_.tasks) {
  schedule_.num_ranks = options.roles.num_ranks();
  CHECK(options.only_rank < schedule_.num_ranks, "rank {} of {}", options.only_rank,
        schedule_.num_ranks);
  first_rank_ = std::max(0, options.only_rank);
  end_rank_ = options.only_rank < 0 ? schedule_.num_ranks : options.only_rank + 1;
}

TaskId StepBuilder::Add(TaskKind kind, int rank, LaneKind lane, At at, Work work,
                        const std::vector<RankTasks>& after) {
  if (micro_batch_ >= 0) SetMicroBatch(micro_batch_, work);
  Task& task = tasks_->emplace_back(Task{.kind = kind,
                                         .lane = {rank, lane},
                                         .layer = at.layer,
                                         .micro_batch = micro_batch_,
                                         .chunk = at.chunk,
                                         .encoder = encoder_,
                                         .block = at.block,
                                         .work = std::move(work)});
  for (const RankTasks& others : after) {
    const TaskId before = others.empty() ? -1 : others[rank - first_rank_];
    if (before >= 0) task.after.push_back(before);
  }
  return static_cast<TaskId>(tasks_->size() - 1);
}

bool StepBuilder::WaitsForExchange(const std::vector<RankTasks>& after) const {
  for (const RankTasks& others : after) {
    for (const TaskId id : others) {
      if (id >= 0 && IsCollective((*tasks_)[id].kind)) return true;
    }
  }
  return false;
}

RankTasks StepBuilder::Compute(TaskKind kind, At at, const WorkOf& work,
                               const std::vector<RankTasks>& after) {
  if (pauses_by_itself_ && WaitsForExchange(after)) Pause();
  RankTasks tasks;
  for (int rank = first_rank_; rank < end_rank_; ++rank) {
    tasks.push_back(uses(rank) ? Add(kind, rank, LaneKind::kCompute, at, work(rank), after) : -1);
  }
  return tasks;
}

RankTasks StepBuilder::OfUsedRanks(RankTasks tasks) const {
  for (int rank = first_rank_; rank < end_rank_; ++rank) {
    if (!uses(rank)) tasks[rank - first_rank_] = -1;
  }
  return tasks;
}

void StepBuilder::Pause() {
  if (pauses_ != nullptr) pauses_->push_back(tasks_->size());
}

void StepBuilder::ComputeOn(int rank, TaskKind kind, At at, const std::function<Work()>& work,
                            const std::vector<RankTasks>& after) {
  if (builds(rank)) Add(kind, rank, LaneKind::kCompute, at, work(), after);
}

RankTasks StepBuilder::OnLane(TaskKind kind, LaneKind lane, At at, const WorkOf& work,
                              const std::vector<RankTasks>& after) {
  RankTasks tasks;
  for (int rank = first_rank_; rank < end_rank_; ++rank) {
    tasks.push_back(uses(rank) ? Add(kind, rank, lane, at, work(rank), after) : -1);
  }
  return tasks;
}

RankTasks StepBuilder::Collective(TaskKind kind, LaneKind lane, At at, const WorkOf& work,
                                  const std::vector<RankTasks>& after,
                                  const std::function<int(int rank)>& group_of) {
  RankTasks tasks;
  const auto add = [&](int rank, int number) {
    if (!uses(rank)) return tasks.push_back(-1);
    tasks.push_back(Add(kind, rank, lane, at, work(rank), after));
    tasks_->back().collective = number;
  };
  if (!group_of) {
    const int number = num_collectives_++;
    for (int rank = first_rank_; rank < end_rank_; ++rank) add(rank, number);
    return tasks;
  }
  std::map<int, int> numbers;  // the same whichever ranks are built
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (!uses(rank)) {
      if (builds(rank)) tasks.push_back(-1);
      continue;
    }
    const auto [number, is_new] = numbers.try_emplace(group_of(rank));
    if (is_new) number->second = num_collectives_++;
    if (builds(rank)) add(rank, number->second);
  }
  return tasks;
}

std::vector<RankTasks> StepBuilder::BuildMicroBatches(const std::function<RankTasks()>& build) {
  const int num_micro_batches = options_.pipeline.micro_batches;
  if (num_micro_batches == 1) return {build()};
  std::vector<Part> parts(static_cast<size_t>(num_micro_batches));
  std::vector<RankTasks> results;
  for (int i = 0; i < num_micro_batches; ++i) {
    micro_batch_ = i;
    tasks_ = &parts[i].tasks;
    pauses_ = &parts[i].pauses;
    results.push_back(build());
    parts[i].pauses.push_back(parts[i].tasks.size());
  }
  micro_batch_ = -1;
  tasks_ = &schedule_.tasks;
  pauses_ = nullptr;

  // All have the same tasks, and so the same pauses.
  for (size_t turn = 0; turn < parts.front().pauses.size(); ++turn) {
    for (Part& part : parts) {
      while (part.merged.size() < part.pauses[turn]) {
        Task& task = part.tasks[part.merged.size()];
        for (TaskId& before : task.after) before = part.merged[before];
        part.merged.push_back(static_cast<TaskId>(schedule_.tasks.size()));
        schedule_.tasks.push_back(std::move(task));
      }
    }
  }
  for (int i = 0; i < num_micro_batches; ++i) {
    for (TaskId& id : results[i]) id = id < 0 ? id : parts[i].merged[id];
  }
  return results;
}

schedule::Schedule StepBuilder::Take() {
  const Status valid = Validate(schedule_);
  CHECK(valid.ok(), "{}", valid.error().message);
  const Status ordered = CheckHazards(schedule_);
  CHECK(ordered.ok(), "{}", ordered.error().message);
  return std::move(schedule_);
}

}  // namespace convene::strategy
