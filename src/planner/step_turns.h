// How each step of a plan with lines is divided in time (plan/lane_lines.h): its micro-batches,
// chunks and order, solved when its size is known and kept for steps like it (FinDEP, section 5.5).
// The same plan and the same sizes give the same answer on every rank, so that none has to ask.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "plan/lane_lines.h"
#include "planner/disaggregated_pipeline.h"
#include "strategy/step.h"
#include "strategy/step_load.h"

namespace convene::planner {

// Of a number: itself with its three highest bits alone. Numbers of a class differ by less than a
// quarter.
int64_t ClassOfSize(int64_t number);

// Lines of a step with so many keys for each row, with these in its rows.
DisaggregatedLines WithKeys(DisaggregatedLines lines, double keys_per_row);

// Of lines for steps of up to so many rows each, in increasing order: those of a step of so many;
// of a larger one the last. Precondition: there are some.
const plan::LaneLines& LinesOf(std::span<const plan::LaneLines> lines, int64_t rows);

class StepTurns {
 public:
  // `lines` as a plan has them, at least one; `most`: of what no step has more micro-batches nor
  // chunks.
  StepTurns(std::vector<plan::LaneLines> lines, strategy::Pipeline most);

  // Of a step with at least one row. Where it is like one before, in less than a microsecond;
  // otherwise within a few dozen.
  strategy::Pipeline For(const strategy::StepLoad& load);

  int num_solved() const { return num_solved_; }

 private:
  strategy::Pipeline Solve(int64_t rows, double keys_per_row) const;

  std::vector<plan::LaneLines> lines_;
  strategy::Pipeline most_;
  std::map<std::pair<int64_t, int64_t>, strategy::Pipeline> known_;  // by classes of rows and keys
  int num_solved_ = 0;
};

}  // namespace convene::planner
