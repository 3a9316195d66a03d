// Puts the tasks of a step together, rank by rank: lanes, dependencies and numbers of collectives.
// Which tasks there are is the strategies' matter; what kinds touch is schedule/task_table.h's.
#pragma once

#include <functional>
#include <vector>

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::strategy {

// The tasks of one kind and place on all ranks that are built, in the order of ranks; -1 where a
// rank has none.
using RankTasks = std::vector<schedule::TaskId>;

class StepBuilder {
 public:
  // Keeps references to both.
  StepBuilder(const model::ModelSpec& spec, const StepOptions& options, bool encoder);

  const model::ModelSpec& spec() const { return spec_; }
  const StepOptions& options() const { return options_; }
  const Roles& roles() const { return options_.roles; }
  bool is_encoder() const { return encoder_; }
  int num_ranks() const { return schedule_.num_ranks; }
  // Whether this rank's tasks are built.
  bool builds(int rank) const { return rank >= first_rank_ && rank < end_rank_; }
  const std::vector<model::LayerSpec>& layers() const {
    return encoder_ ? spec_.encoder_layers : spec_.layers;
  }

  using WorkOf = std::function<schedule::Work(int rank)>;
  struct At {
    int layer = -1;
    int chunk = -1;
    schedule::Block block = schedule::Block::kAttention;
  };

  // The ranks with such roles get tasks from Compute and Collective from here on; at first all do.
  void UseRanks(bool (Role::*role)() const) {
    used_ = [this, role](int rank) { return (roles().of(rank).*role)(); };
  }
  // Ranks `first` to `last`.
  void UseRanks(int first, int last) {
    used_ = [first, last](int rank) { return rank >= first && rank <= last; };
  }
  void UseAllRanks() { used_ = nullptr; }
  // Of these tasks those of the ranks in use.
  RankTasks OfUsedRanks(RankTasks tasks) const;

  // A task of every rank's compute lane; `after` (per rank) besides what is before it there.
  RankTasks Compute(schedule::TaskKind kind, At at, const WorkOf& work,
                    const std::vector<RankTasks>& after = {});
  // The same of one rank only; nothing if that is not built.
  void ComputeOn(int rank, schedule::TaskKind kind, At at,
                 const std::function<schedule::Work()>& work,
                 const std::vector<RankTasks>& after = {});
  // One collective for each group of ranks with the same group_of(rank).
  RankTasks Collective(schedule::TaskKind kind, schedule::LaneKind lane, At at, const WorkOf& work,
                       const std::vector<RankTasks>& after,
                       const std::function<int(int rank)>& group_of = {});

  // A task on another lane of every rank, which runs beside its compute lane.
  RankTasks OnLane(schedule::TaskKind kind, schedule::LaneKind lane, At at, const WorkOf& work,
                   const std::vector<RankTasks>& after);
  // Tasks from here on are of this micro-batch, where the builder itself takes turns; -1: of none.
  // With one micro-batch tasks have no number.
  void UseMicroBatch(int micro_batch) {
    micro_batch_ = options_.pipeline.micro_batches > 1 ? micro_batch : -1;
  }

  // Builds every micro-batch with `build`, and brings them together: each goes on until its
  // computation has to wait for an exchange; then it is the next one's turn. So the exchange of one
  // has the computation of the others beside it. Returns what `build` returned, of all.
  std::vector<RankTasks> BuildMicroBatches(const std::function<RankTasks()>& build);
  // While building one: here it is the next one's turn. With PauseOnlyWhereAsked, nowhere else.
  void Pause();
  void PauseOnlyWhereAsked() { pauses_by_itself_ = false; }

  // Ends with CHECK where the schedule has a hazard or a cycle.
  schedule::Schedule Take();

 private:
  schedule::TaskId Add(schedule::TaskKind kind, int rank, schedule::LaneKind lane, At at,
                       schedule::Work work, const std::vector<RankTasks>& after);
  bool uses(int rank) const { return !used_ || used_(rank); }
  bool WaitsForExchange(const std::vector<RankTasks>& after) const;

  // The tasks of a micro-batch, before they are brought together with others.
  struct Part {
    std::vector<schedule::Task> tasks;
    std::vector<size_t> pauses;            // places of tasks before which its computation waits
    std::vector<schedule::TaskId> merged;  // by task: its id in the schedule
  };

  const model::ModelSpec& spec_;
  const StepOptions& options_;
  bool encoder_;
  int first_rank_ = 0;
  int end_rank_ = 1;
  std::function<bool(int rank)> used_;  // none: all
  bool pauses_by_itself_ = true;
  int num_collectives_ = 0;
  int micro_batch_ = -1;  // that is being built
  std::vector<size_t>* pauses_ = nullptr;
  schedule::Schedule schedule_;
  std::vector<schedule::Task>* tasks_;  // where tasks go: the schedule's, or a part's
};

}  // namespace convene::strategy
