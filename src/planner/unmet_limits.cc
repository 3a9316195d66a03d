#include "planner/unmet_limits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/plain_number.h"
#include "base/units.h"

namespace convene::planner {
namespace {

// How far beyond its limit a figure is; at most 1: within it, or there is none.
double Excess(double seconds, double limit) { return limit > 0 ? seconds / limit : 0; }

// Rates are tried a quarter each of the one before, down to 1e-15 of what was asked for.
constexpr int kMostQuarters = 25;
constexpr double kRateAccuracy = 0.02;

// Error: it has no memory for those that run together at the rate, or is not fast enough.
Result<FittedPlan> KeepUp(PlanSearch& search, const Candidate& candidate, double rate) {
  Workload workload = search.question().workload;
  workload.arrival_rate = rate;
  return search.Fit(candidate, workload);
}

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
    if (candidate.rejected_by != "prices" && candidate.rejected_by != "limits") continue;
    const Result<FittedPlan> fitted = search.Fit(candidate, workload);
    if (!fitted) continue;
    const PlanFigures& found = fitted->figures;
    const double excess = std::max(Excess(found.ttft, limits.ttft),
                                   Excess(found.time_per_token, limits.time_per_token));
    // What may not be chosen is near in words alone.
    const bool is_nearer = nearest == nullptr || std::pair(!candidate.is_allowed(), excess) <
                                                     std::pair(!nearest->is_allowed(), least);
    if (!is_nearer) continue;
    nearest = &candidate;
    figures = found;
    least = excess;
  }
  if (nearest == nullptr) return std::nullopt;
  std::vector<std::string> missed;
  if (Excess(figures.ttft, limits.ttft) > 1) {
    missed.push_back(fmt::format("{} s to the first token, beyond the limit of {} s",
                                 PlainNumber(figures.ttft), PlainNumber(limits.ttft)));
  }
  if (Excess(figures.time_per_token, limits.time_per_token) > 1) {
    missed.push_back(fmt::format("{} s per token, beyond the limit of {} s",
                                 PlainNumber(figures.time_per_token),
                                 PlainNumber(limits.time_per_token)));
  }
  if (missed.empty()) return std::nullopt;
  return Error{fmt::format(
      "no plan keeps the limits; the nearest{}, {}, has with {} {}: raise the limits, or ask for "
      "shorter prompts, fewer requests or more ranks",
      nearest->is_allowed()
          ? ""
          : fmt::format(" (which would need --allow {})", fmt::join(nearest->needs, ",")),
      Describe(*nearest), FormatCount(static_cast<uint64_t>(figures.batch), "sequence"),
      fmt::join(missed, ", and "))};
}

std::optional<Error> WhyTooManyArrive(PlanSearch& search) {
  const double asked = search.question().workload.arrival_rate;
  if (asked <= 0) return std::nullopt;
  std::vector<const Candidate*> left;
  for (const Candidate& candidate : search.candidates()) {
    if (candidate.rejected_by == "prices" && candidate.is_allowed()) left.push_back(&candidate);
  }
  double enough = asked;
  for (int turn = 0; turn < kMostQuarters && !left.empty(); ++turn) {
    enough /= 4;
    std::vector<const Candidate*> keep_up;
    for (const Candidate* candidate : left) {
      if (KeepUp(search, *candidate, enough)) keep_up.push_back(candidate);
    }
    if (keep_up.empty()) continue;
    // The rate at which the last of them gives up.
    double too_many = 4 * enough;
    while (too_many - enough > kRateAccuracy * enough) {
      const double middle = (enough + too_many) / 2;
      std::vector<const Candidate*> still;
      for (const Candidate* candidate : keep_up) {
        if (KeepUp(search, *candidate, middle)) still.push_back(candidate);
      }
      (still.empty() ? too_many : enough) = middle;
      if (!still.empty()) keep_up = std::move(still);
    }
    const Candidate& best = *keep_up.front();
    Candidate there = best;
    there.plan = KeepUp(search, best, enough)->plan;
    return Error{fmt::format(
        "no plan keeps up with {} requests per second; the best, {}, does with up to {} of "
        "them, and at the rate that was asked for {}: ask for fewer requests, or for more ranks",
        PlainNumber(asked), Describe(there), PlainNumber(enough, 3), best.reason)};
  }
  return std::nullopt;
}

}  // namespace convene::planner
