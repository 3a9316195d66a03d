// How many of the requests that are all there at once run together: the batch of MoE-Lightning's
// policy (Cao et al. 2024, section 4.2), for any plan. A step reads the weights once for all of
// them, and takes keys and values of each into memory.
#pragma once

#include <string>
#include <vector>

#include "planner/plan_question.h"

namespace convene::planner {

// Of so many that run together the plan, of those that were looked at, that answers all soonest.
struct TriedBatch {
  int batch = 1;
  double seconds = 0;  // until all requests are answered; 0: there is no memory for any plan
};

struct BatchOfRequests {
  int batch = 1;
  std::vector<TriedBatch> tried;  // by batch

  // "256 of 1,024 requests run together; 128 would take 9.1 % longer, 512 3.0 %"
  std::string Describe(int num_requests) const;
};

// Tries numbers of sequences from question.workload.batch on, doubled, and equal parts of the
// requests, with the best plans of a search at the first of them that has room; the fewest that are
// within 3 % of the best number are taken, since each takes memory and lets first tokens wait.
// Preconditions: the objective is throughput, and question.workload.num_requests is set. Errors:
// SearchPlan's with one sequence.
Result<BatchOfRequests> ChooseBatch(const PlanQuestion& question);

}  // namespace convene::planner
