#include "evaluate/held_out_steps.h"

#include <gtest/gtest.h>

#include <vector>

#include "cost/step_interval.h"

namespace convene::evaluate {
namespace {

using schedule::TaskKind;

double NothingHasASize(const schedule::Size&) { return 0; }

// Steps of one task each, of two models. Experts of the second take so many times as long, and
// whatever is measured wanders by so much from one step to the next.
struct TwoModels {
  explicit TwoModels(double second, double noise) {
    constexpr int kSteps = 40;
    schedules.reserve(2 * kSteps);
    for (int i = 0; i < 2 * kSteps; ++i) {
      const double bytes = 1e6 * (1 + i / 2);
      schedules.push_back({});
      schedules.back().tasks.push_back({.kind = TaskKind::kExperts,
                                        .layer = 0,
                                        .work = {.flops = schedule::Constant(bytes),
                                                 .memory_bytes = schedule::Constant(bytes)}});
      const double off = i % 4 < 2 ? 1 + noise : 1 - noise;
      const double seconds = bytes * 1e-10 * (i % 2 == 0 ? 1 : second) * off;
      steps.push_back({.schedule = &schedules.back(),
                       .sizes = NothingHasASize,
                       .timelines = {{{{0, seconds}}}},
                       .states = {{}},
                       .fold = i,
                       .model = i % 2});
    }
    costs = cost::FitStepCosts(steps, {1e10, 1e12});
  }

  // How many of the model's steps lie in the interval that costs of the other model give.
  int NumInside(int model, double stretch) const {
    std::vector<cost::SampledStep> others;
    for (const cost::SampledStep& step : steps) {
      if (step.model != model) others.push_back(step);
    }
    const cost::StepCosts of_others =
        cost::FitStepCosts(others, costs.reference, {.validates = false});
    cost::StepErrors errors = cost::ErrorsOf(costs);
    errors.stretch = stretch;
    int inside = 0;
    for (const cost::SampledStep& step : steps) {
      if (step.model != model) continue;
      cost::Outline outline{.seconds =
                                of_others.tasks[static_cast<size_t>(TaskKind::kExperts)]->Seconds(
                                    cost::PartsOf(step.schedule->tasks[0], NothingHasASize))};
      outline.by_kind[static_cast<size_t>(TaskKind::kExperts)] = outline.seconds;
      const cost::Interval interval = cost::IntervalOf(outline, errors);
      const double measured = step.timelines[0].seconds();
      inside += interval.low <= measured * (1 + 1e-9) && measured <= interval.high * (1 + 1e-9);
    }
    return inside;
  }

  std::vector<schedule::Schedule> schedules;
  std::vector<cost::SampledStep> steps;
  cost::StepCosts costs;
};

TEST(IntervalStretch, IsWhatStepsOfModelsThatWereLeftOutNeed) {
  const TwoModels models(/*second=*/1.5, /*noise=*/0.05);
  const double stretch = IntervalStretch(models.steps, models.costs);
  EXPECT_GT(stretch, 1);
  const int inside = models.NumInside(0, stretch) + models.NumInside(1, stretch);
  EXPECT_GE(inside, 72) << "of 80";
  const int in_less = models.NumInside(0, 0.9 * stretch) + models.NumInside(1, 0.9 * stretch);
  EXPECT_LT(in_less, 72) << "of 80";
}

TEST(IntervalStretch, IsNearOneWhereModelsAreAlikeAndOneWhereThereIsOneModel) {
  TwoModels alike(/*second=*/1, /*noise=*/0.05);
  EXPECT_NEAR(IntervalStretch(alike.steps, alike.costs), 1, 0.3);
  for (cost::SampledStep& step : alike.steps) step.model = 0;
  EXPECT_EQ(IntervalStretch(alike.steps, alike.costs), 1);
}

}  // namespace
}  // namespace convene::evaluate
