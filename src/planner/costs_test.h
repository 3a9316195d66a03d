// Costs of steps for tests of the planner: of tasks by their weights, FLOPs and groups, and of
// exchanges by their bytes.
#pragma once

#include "cost/step_costs.h"

namespace convene::planner {

struct MadeCosts {
  double flops_per_second = 6e11;
  double weight_bytes_per_second = 1e12;
  double seconds_per_group = 0;
  double link_bytes_per_second = 4e7;  // of all ranks together
  double latency = 1e-5;
  double core_seconds_per_byte = 0;
  double error = 0;  // that nine in ten tasks, and steps with overlap, have at most
};

inline cost::StepCosts MakeCosts(int num_ranks, const MadeCosts& made) {
  cost::StepCosts costs{.num_ranks = num_ranks, .weights = "bf16"};
  for (auto& task : costs.tasks) {
    task = cost::TaskCost{};
    // Read until the intensity at which computing takes as long, and computed from there.
    const double balance = made.flops_per_second / made.weight_bytes_per_second;
    task->per_weight_byte = {
        .at = {balance / 1e6, balance, balance * 1e6},
        .value = {1 / made.weight_bytes_per_second, 1 / made.weight_bytes_per_second,
                  1e6 / made.weight_bytes_per_second}};
    task->per_group = made.seconds_per_group;
    task->most_flops = task->most_row_bytes = task->most_groups = task->most_score_flops = 1e18;
  }
  const double beta = 1 / made.link_bytes_per_second;
  costs.exchange.seconds = {.at = {1, 1e12}, .value = {made.latency, made.latency + 1e12 * beta}};
  costs.exchange.core_seconds_per_byte = made.core_seconds_per_byte;
  for (auto& held_out : costs.held_out) held_out = {.low = -made.error, .high = made.error};
  costs.overlapped_held_out = {.low = -made.error, .high = made.error};
  return costs;
}

}  // namespace convene::planner
