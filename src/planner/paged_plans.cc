#include "planner/paged_plans.h"

#include <utility>

#include "planner/spilled_steps.h"

namespace convene::planner {
namespace {

Result<plan::Plan> WithExperts(const PlanQuestion& question, const RankSetup& setup,
                               const plan::Plan& whole, int batch, uint64_t memory_bytes) {
  const Result<int> experts = question.experts_that_fit(setup, whole, batch, memory_bytes);
  if (!experts) return experts.error();
  plan::Plan plan = whole;
  plan.experts_in_memory = *experts;
  return plan;
}

}  // namespace

PagedPlans PagedPlansOf(const PlanQuestion& question, const RankSetup& setup,
                        const plan::Plan& whole, int batch, uint64_t memory_bytes) {
  // Of goodput for one sequence: PlanSearch::Fit counts them for those that run together.
  const bool is_goodput = question.workload.objective == Objective::kGoodput;
  PagedPlans plans{
      .experts = WithExperts(question, setup, whole, is_goodput ? 1 : batch, memory_bytes),
      .spilled = {}};
  // Who comes one by one, and how many of them, is not known ahead.
  const bool is_stream = question.workload.arrival_rate > 0;
  if (!question.spilled_that_fit || is_stream || setup.num_ranks > 1) return plans;
  for (const double share : kKvShares) {
    Result<plan::Plan> spilled =
        question.spilled_that_fit(setup, whole, batch, memory_bytes, share);
    // Then experts do not fit beside keys and values in memory either, which was said.
    if (spilled) plans.spilled.push_back(*std::move(spilled));
  }
  return plans;
}

}  // namespace convene::planner
