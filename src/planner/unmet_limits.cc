#include "planner/unmet_limits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"

namespace convene::planner {
namespace {

// How far beyond its limit a figure is; at most 1: within it, or there is none.
double Excess(double seconds, double limit) { return limit > 0 ? seconds / limit : 0; }

}  // namespace

std::optional<Error> WhyLimitsAreUnmet(PlanSearch& search) {
  Workload workload = search.question().workload;
  if (workload.objective != Objective::kGoodput) return std::nullopt;
  const ServiceLimits limits = workload.limits;
  workload.objective = Objective::kThroughput;
  if (workload.arrival_rate <= 0) workload.batch = 1;  // what answers soonest
  const Candidate* nearest = nullptr;
  PlanFigures figures;
  double least = 0;
  for (const Candidate& candidate : search.candidates()) {
    if (candidate.rejected_by != "prices") continue;
    const Result<PlanFigures> found = search.FiguresOf(candidate.setup, candidate.plan, workload);
    if (!found) continue;
    const double excess = std::max(Excess(found->ttft, limits.ttft),
                                   Excess(found->time_per_token, limits.time_per_token));
    if (nearest != nullptr && excess >= least) continue;
    nearest = &candidate;
    figures = *found;
    least = excess;
  }
  if (nearest == nullptr) return std::nullopt;
  std::vector<std::string> missed;
  if (Excess(figures.ttft, limits.ttft) > 1) {
    missed.push_back(fmt::format("{:.4g} s to the first token, beyond the limit of {:.4g} s",
                                 figures.ttft, limits.ttft));
  }
  if (Excess(figures.time_per_token, limits.time_per_token) > 1) {
    missed.push_back(fmt::format("{:.4g} s per token, beyond the limit of {:.4g} s",
                                 figures.time_per_token, limits.time_per_token));
  }
  if (missed.empty()) return std::nullopt;
  return Error{fmt::format(
      "no plan keeps the limits; the nearest, {}, has with {} {}: allow more, or ask for shorter "
      "prompts, fewer requests or more ranks",
      Describe(*nearest), FormatCount(static_cast<uint64_t>(figures.batch), "sequence"),
      fmt::join(missed, ", and "))};
}

}  // namespace convene::planner
