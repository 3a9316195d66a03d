// Sizes of a step whose routing was drawn at random: where an expectation has all ranks busy alike,
// a draw has one that gets more experts and rows than others, and the others wait for it. With few
// tokens that is most of what expert parallelism costs. Steps without chunks and micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/expected_sizes.h"
#include "schedule/schedule.h"
#include "strategy/role.h"

namespace convene::planner {

class DrawnSizes {
 public:
  // Each row visits top_k different experts, drawn one after the other with odds as `shares`. What
  // routing does not decide is as in `expected`. Keeps a reference to it. The same seed draws the
  // same.
  DrawnSizes(const cost::ExpectedSizes& expected, const strategy::Roles& roles,
             const cost::ExpertShares& shares, int top_k, uint32_t seed);

  double at(const schedule::Size& size) const;

 private:
  double& sent(int from, int to) { return sent_[from * num_ranks_ + to]; }

  const cost::ExpectedSizes& expected_;
  int num_ranks_;
  std::vector<double> sent_;     // rows of a rank that visit another one, by both
  std::vector<double> slots_;    // by rank
  std::vector<double> experts_;  // likewise
};

}  // namespace convene::planner
