// Puts the tasks of a step together, rank by rank: lanes, dependencies and numbers of collectives.
// Which tasks there are is the strategies' matter.
#pragma once

#include <functional>
#include <vector>

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::strategy {

// One id per rank.
using RankTasks = std::vector<schedule::TaskId>;

class StepBuilder {
 public:
  StepBuilder(const model::ModelSpec& spec, const StepOptions& options, bool encoder)
      : spec_(spec), options_(options), encoder_(encoder) {
    schedule_.num_ranks = options.layout.num_ranks();
  }

  const model::ModelSpec& spec() const { return spec_; }
  const StepOptions& options() const { return options_; }
  const Layout& layout() const { return options_.layout; }
  int num_ranks() const { return schedule_.num_ranks; }
  const std::vector<model::LayerSpec>& layers() const {
    return encoder_ ? spec_.encoder_layers : spec_.layers;
  }

  using WorkOf = std::function<schedule::Work(int rank)>;
  struct At {
    int layer = -1;
    int chunk = -1;
    bool cross = false;
  };

  // A task of every rank's compute lane; `after` (per rank) besides what is before it there.
  RankTasks Compute(schedule::TaskKind kind, At at, const WorkOf& work,
                    const std::vector<RankTasks>& after = {});
  // Of one rank only.
  schedule::TaskId ComputeOn(int rank, schedule::TaskKind kind, At at, schedule::Work work,
                             std::vector<schedule::TaskId> after = {});
  // One collective for each group of ranks with the same group_of(rank).
  RankTasks Collective(schedule::TaskKind kind, schedule::LaneKind lane, At at, const WorkOf& work,
                       const std::vector<RankTasks>& after,
                       const std::function<int(int rank)>& group_of = {});

  schedule::Schedule Take() { return std::move(schedule_); }

 private:
  schedule::TaskId Add(schedule::TaskKind kind, schedule::Lane lane, At at, schedule::Work work);

  const model::ModelSpec& spec_;
  const StepOptions& options_;
  bool encoder_;
  int num_collectives_ = 0;
  schedule::Schedule schedule_;
};

}  // namespace convene::strategy
