// Sizes of a step whose routing was drawn at random: where an expectation has all ranks busy alike,
// a draw has one that gets more experts and rows than others, and the others wait for it. With few
// tokens that is most of what expert parallelism costs. What the waiting takes is not here
// (routing_waits.h).
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "cost/expected_sizes.h"
#include "schedule/schedule.h"
#include "strategy/role.h"

namespace convene::planner {

// Routings of `num_rows` rows to draw for a mean, by the seeds from 0 on: the same ones for all who
// price a step. 0 where the busiest rank has next to no more than its part.
int NumRoutingDraws(double num_rows, int top_k, const strategy::Roles& roles);

// Draws the experts of one row after the other: sets of top_k different ones, as likely as the
// product of their odds, which is what expectations suppose (cost::ExpectedSizes::set_odds).
class RoutingDraw {
 public:
  RoutingDraw(const std::vector<double>& odds, int top_k, uint32_t seed);

  // Good until the next call.
  const std::vector<int>& NextExperts();
  // Is true as often as the probability says.
  bool NextIs(double probability) { return Uniform() < probability; }

 private:
  // Neither 0 nor 1.
  double Uniform() { return (static_cast<double>(random_()) + 0.5) / 4294967296.0; }
  // Whether expert i of order_ is taken, where `missing` are still to be taken from it on.
  double& taken(size_t i, int missing) {
    return taken_[i * static_cast<size_t>(top_k_ + 1) + missing];
  }

  bool is_uniform_;
  std::vector<int> order_;  // of experts that are visited at all, the likeliest first
  int top_k_;
  std::vector<double> taken_;
  std::vector<int> chosen_;
  std::mt19937 random_;
};

class DrawnSizes {
 public:
  // What routing does not decide is as in `expected`. Keeps a reference to it. The same seed draws
  // the same. Of many rows some are drawn, and what these differ from their mean stands for all.
  // Chunks and micro-batches have parts of what is drawn as they have of what is expected.
  DrawnSizes(const cost::ExpectedSizes& expected, const strategy::Roles& roles,
             const cost::ExpertShares& shares, int top_k, uint32_t seed);

  double at(const schedule::Size& size) const;

 private:
  double& sent(int from, int to) { return sent_[from * num_ranks_ + to]; }
  double OfWholeStep(const schedule::Size& size) const;

  const cost::ExpectedSizes& expected_;
  int num_ranks_;
  std::vector<double> sent_;     // rows of a rank that visit another one, by both
  std::vector<double> slots_;    // by rank
  std::vector<double> experts_;  // likewise
};

}  // namespace convene::planner
