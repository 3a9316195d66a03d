#include "planner/verification_price.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "planner/workload_steps.h"

namespace convene::planner {
namespace {

// Of a normal distribution, nine in ten lie within so many standard deviations.
constexpr double kDeviationsOfNineInTen = 1.645;

// Weights pass through memory as they are read, are converted, and are written.
constexpr double kPassesOfLoading = 3;

// The mean of max(0, x) over a normal distribution.
double MeanAboveZero(double mean, double deviation) {
  if (!(deviation > 0)) return std::max(0.0, mean);
  const double z = mean / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  const double share = std::erfc(-z / std::numbers::sqrt2) / 2;
  return deviation * density + mean * share;
}

// Of the seconds per generated token. No plan spares more than the chosen one takes.
double GainOf(const PlanFigures& chosen, const PlanFigures& other, const cost::StepErrors& errors) {
  const cost::Interval difference =
      cost::IntervalOfDifference(OutlineOfScore(chosen), OutlineOfScore(other), errors);
  const double mean = chosen.score - other.score;
  const double deviation = (difference.high - difference.low) / 2 / kDeviationsOfNineInTen;
  return MeanAboveZero(mean, deviation) - MeanAboveZero(mean - chosen.score, deviation);
}

// Each of the steps that stand for all prompts once, and some of decode.
double RunSeconds(const PlanQuestion& question, const Candidate& candidate, int decode_steps) {
  const strategy::Roles roles =
      strategy::Roles(candidate.plan.layout).ExpandingFrom(question.expand_from_tokens);
  const int batch = candidate.figures->batch;
  double num_run = 0;
  double num_all = 0;
  for (const TypicalStep& step :
       PrefillStepsOf(question.spec, TypicalSequences(question.workload, batch), roles,
                      candidate.plan.step_tokens_for(batch, question.step_tokens))) {
    if (!(step.count > 0)) continue;
    num_run += 1;
    num_all += step.count;
  }
  const double share = num_all > 0 ? num_run / num_all : 0;
  return share * candidate.figures->ttft + decode_steps * candidate.figures->time_per_token;
}

bool PlacesAlike(const Candidate& a, const Candidate& b) {
  // Experts that move are loaded for each plan (evaluate/try_plans.cc).
  return a.setup == b.setup && a.plan.layout == b.plan.layout && !a.plan.decode && !b.plan.decode;
}

}  // namespace

VerificationPrice PriceVerification(const PlanSearch& search, const PlanAnswer& answer,
                                    std::span<const int> plans, int64_t num_tokens,
                                    const TrialShape& shape) {
  VerificationPrice price;
  const Candidate& chosen = answer.candidates[plans.front()];
  const cost::StepErrors errors = search.PricerOf(chosen).Errors();
  const auto tokens = static_cast<double>(num_tokens);
  price.work = tokens * chosen.figures->score;
  std::vector<const Candidate*> loaded;
  for (const int index : plans) {
    const Candidate& one = answer.candidates[index];
    if (index != plans.front()) {
      price.gain = std::max(price.gain, tokens * GainOf(*chosen.figures, *one.figures, errors));
    }
    price.runs += shape.runs * RunSeconds(search.question(), one, shape.decode_steps);
    const bool is_there = std::ranges::any_of(
        loaded, [&](const Candidate* other) { return PlacesAlike(*other, one); });
    if (is_there) continue;
    loaded.push_back(&one);
    const double bytes =
        static_cast<double>(one.memory.weights_bytes) * std::max(1, shape.ranks_per_host);
    if (shape.disk_bytes_per_second > 0) price.loading += bytes / shape.disk_bytes_per_second;
    if (shape.memory_bytes_per_second > 0) {
      price.loading += kPassesOfLoading * bytes / shape.memory_bytes_per_second;
    }
  }
  return price;
}

}  // namespace convene::planner
