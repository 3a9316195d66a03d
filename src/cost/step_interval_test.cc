#include "cost/step_interval.h"

#include <gtest/gtest.h>

namespace convene::cost {
namespace {

using schedule::TaskKind;

StepCosts Measured() {
  StepCosts costs;
  costs.held_out[static_cast<size_t>(TaskKind::kExperts)] = {.low = -0.1, .high = 0.1};
  costs.held_out[static_cast<size_t>(TaskKind::kAttention)] = {.low = 0, .high = 0.2};
  costs.overlapped_held_out = {.low = -0.3, .high = 0.3};
  return costs;
}

StepErrors Errors() { return ErrorsOf(Measured()); }

Outline StepOfTasks(double experts, double attention, bool overlaps) {
  Outline step{.seconds = experts + attention,
               .overlapped_seconds = overlaps ? experts + attention : 0};
  step.by_kind[static_cast<size_t>(TaskKind::kExperts)] = experts;
  step.by_kind[static_cast<size_t>(TaskKind::kAttention)] = attention;
  return step;
}

TEST(StepInterval, KindsAreWrongIndependentlyOfEachOther) {
  const Interval one = IntervalOf(StepOfTasks(10, 0, false), Errors());
  EXPECT_NEAR(one.low, 10 / 1.1, 1e-12);
  EXPECT_NEAR(one.high, 11, 1e-12);
  const Interval both = IntervalOf(StepOfTasks(4, 1.5, false), Errors());
  EXPECT_NEAR(both.low, 5.5 * 5.5 / 6, 1e-12);
  EXPECT_NEAR(both.high, 5.5 + 0.5, 1e-12);
}

TEST(StepInterval, OfAStepIsStretchedAndOfADifferenceNot) {
  StepCosts costs = Measured();
  costs.interval_stretch = 2;
  const Interval step = IntervalOf(StepOfTasks(10, 0, false), ErrorsOf(costs));
  EXPECT_NEAR(step.high, 12, 1e-12);
  EXPECT_NEAR(step.low, 10 / 1.2, 1e-12);
  const Interval difference =
      IntervalOfDifference(StepOfTasks(10, 5, false), StepOfTasks(10, 4, false), ErrorsOf(costs));
  EXPECT_NEAR(difference.high, 1 + 0.2, 1e-12);
}

TEST(StepInterval, AnErrorOfOneSignIsNotTakenForAGain) {
  StepCosts costs = Measured();
  costs.held_out[static_cast<size_t>(TaskKind::kExperts)] = {.low = 0.2, .high = 0.4};
  EXPECT_NEAR(IntervalOf(StepOfTasks(10, 0, false), ErrorsOf(costs)).low, 10 / 1.4, 1e-12);
  costs.held_out = {};
  EXPECT_EQ(IntervalOf(StepOfTasks(10, 0, false), ErrorsOf(costs)).high, 10);
}

TEST(StepInterval, OfADifferenceLeavesOutWhatBothHave) {
  const Interval same =
      IntervalOfDifference(StepOfTasks(10, 5, false), StepOfTasks(10, 4, false), Errors());
  EXPECT_NEAR(same.low, 1 - 0.2, 1e-12);
  EXPECT_NEAR(same.high, 1 + 0.2, 1e-12);
  const Interval overlapped =
      IntervalOfDifference(StepOfTasks(10, 0, false), StepOfTasks(9, 0, true), Errors());
  EXPECT_LT(overlapped.low, 1 - 0.3 * 9);
  EXPECT_GT(overlapped.high, 1 + 0.3 * 9);
}

TEST(StepInterval, DecisionsTakeTheUsualErrorWhereNoneIsKnown) {
  const Outline plain = StepOfTasks(10, 5, false);
  const Outline longer = StepOfTasks(10.5, 5, false);
  const Outline parts = StepOfTasks(9.5, 5, true);
  StepCosts costs = Measured();
  // Known errors of 0 leave nothing open, and unknown ones as much as is usual.
  costs.held_out[static_cast<size_t>(TaskKind::kExperts)] = HeldOut{};
  EXPECT_EQ(IntervalOfDifference(longer, plain, ErrorsOf(costs)).low, 0.5);
  costs.held_out[static_cast<size_t>(TaskKind::kExperts)].reset();
  EXPECT_NEAR(IntervalOfDifference(longer, plain, ErrorsOf(costs)).low, 0.5 * (1 - kUsualError),
              1e-12);
  EXPECT_TRUE(HasUsualErrors(longer, plain, ErrorsOf(costs)));
  EXPECT_FALSE(HasUsualErrors(StepOfTasks(10, 6, false), plain, ErrorsOf(costs)));
  costs.overlapped_held_out = HeldOut{};
  EXPECT_TRUE(SurelyTakesLonger(plain, parts, ErrorsOf(costs)));
  costs.overlapped_held_out.reset();
  EXPECT_FALSE(SurelyTakesLonger(plain, parts, ErrorsOf(costs)));
  // What is told of a step knows nothing of that.
  EXPECT_EQ(IntervalOf(parts, StepErrors()).high, parts.seconds);
}

TEST(StepInterval, AGainThatIsNextToNoneIsNoGain) {
  StepCosts costs;
  costs.held_out.fill(HeldOut{});
  const Outline plain = StepOfTasks(10, 5, false);
  for (const double gain : {0.0, 2e-16, 1e-9, 1e-3}) {
    EXPECT_FALSE(SurelyTakesLonger(StepOfTasks(10 + 15 * gain, 5, false), plain, ErrorsOf(costs)));
  }
  EXPECT_TRUE(SurelyTakesLonger(StepOfTasks(10.1, 5, false), plain, ErrorsOf(costs)));
}

TEST(StepInterval, ExchangesAreWrongTogetherAndWhatIsExtrapolatedWidens) {
  StepCosts costs;
  costs.exchange_held_out = HeldOut{.low = -0.1, .high = 0.05};
  Outline step{.seconds = 10};
  step.by_kind[static_cast<size_t>(TaskKind::kDispatch)] = 4;
  step.by_kind[static_cast<size_t>(TaskKind::kCombine)] = 6;
  EXPECT_NEAR(IntervalOf(step, ErrorsOf(costs)).high, 11, 1e-12);
  step.extrapolated_share = 0.5;
  EXPECT_NEAR(IntervalOf(step, ErrorsOf(costs)).high, 11.5, 1e-12);
}

TEST(StepInterval, TheSecondsOnThePathAreThoseThatMakeTheLength) {
  schedule::Schedule schedule;
  schedule.tasks = {{.kind = TaskKind::kAttention},
                    {.kind = TaskKind::kExperts},
                    {.kind = TaskKind::kShared, .lane = {0, schedule::LaneKind::kHost}}};
  const schedule::Timeline timeline{.tasks = {{0, 2}, {2, 5}, {0, 1}}};
  const KindSeconds seconds = SecondsOnPath(schedule, timeline);
  EXPECT_EQ(seconds[static_cast<size_t>(TaskKind::kAttention)], 2);
  EXPECT_EQ(seconds[static_cast<size_t>(TaskKind::kExperts)], 3);
  EXPECT_EQ(seconds[static_cast<size_t>(TaskKind::kShared)], 0);
}

}  // namespace
}  // namespace convene::cost
