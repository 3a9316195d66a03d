// Whether it pays to run the best plans before one is trusted: what knowing the best of them is
// expected to gain over work that is there, beside what trying them takes. How plans are tried is
// evaluate/try_plans.h.
#pragma once

#include <cstdint>
#include <span>

#include "planner/plan_search.h"

namespace convene::planner {

// How plans would be tried.
struct TrialShape {
  int runs = 5;                        // of each plan
  int decode_steps = 4;                // of a run
  int ranks_per_host = 1;              // whose weights one host's disk and memory bring
  double disk_bytes_per_second = 0;    // 0: not known, and weights cost no reading
  double memory_bytes_per_second = 0;  // likewise, and weights cost no packing
};

// Seconds.
struct VerificationPrice {
  double work = 0;  // that the chosen plan is predicted to take for all there is to do
  double gain = 0;  // of it that knowing the best plan is expected to spare
  double runs = 0;
  double loading = 0;

  bool is_worth_it() const { return gain > runs + loading; }
};

// `plans`: candidates of the answer that would run, the chosen one first; `num_tokens`: to be
// generated in all. By how much each of the others may be faster is the interval of the difference
// to the chosen one, taken as that of a normal distribution: the gain is the mean of what is below
// zero of it, of the plan for which that is the most, where nothing spares more than all of the
// chosen plan's time. So a plan that is surely slower gains
// nothing, and one that is surely as fast neither. A run is of the steps that stand for the
// workload, and each division of the weights is loaded once: read, converted and written.
// Precondition: the workload's objective is throughput, and all plans have figures.
VerificationPrice PriceVerification(const PlanSearch& search, const PlanAnswer& answer,
                                    std::span<const int> plans, int64_t num_tokens,
                                    const TrialShape& shape);

}  // namespace convene::planner
