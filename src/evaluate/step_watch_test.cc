#include "evaluate/step_watch.h"

#include <gtest/gtest.h>

#include <memory>

namespace convene::evaluate {
namespace {

runtime::RecordedStep StepOf(int num_tokens, double start) {
  auto schedule = std::make_shared<schedule::Schedule>();
  schedule->num_ranks = 1;
  schedule::Task& task = schedule->tasks.emplace_back();
  task.kind = schedule::TaskKind::kAttention;
  task.lane = {0, schedule::LaneKind::kCompute};
  runtime::RecordedStep step{.schedule = schedule};
  step.start = start;
  step.timeline.tasks = {{0, 1}};
  step.num_tokens = num_tokens;
  step.num_sequences = 1;
  return step;
}

TEST(StepWatch, AllStepsOfATraceHaveTheGeometricMeanOfBothSpeeds) {
  StepWatch watch;
  watch.SetRun("int8", 2, "a plan of a model");
  watch.See(StepOf(8, 0), /*keeps_steps=*/true);
  watch.See(StepOf(1, 1), /*keeps_steps=*/true);
  watch.SetSpeeds({.read_bytes_per_second = 10e9, .dot_operations_per_second = 4e11},
                  {.read_bytes_per_second = 40e9, .dot_operations_per_second = 1e11});
  const auto trace = drawing::TraceFromJson(drawing::TraceJson(watch.MakeTrace()));
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->steps.size(), 2);  // a prefill and a decode step
  for (const drawing::TracedStep& step : trace->steps) {
    EXPECT_TRUE(step.has_speed());
    EXPECT_NEAR(step.read_bytes_per_second, 20e9, 1e3);
    EXPECT_NEAR(step.dot_operations_per_second, 2e11, 1e4);
  }
}

TEST(StepWatch, WhereNobodyMeasuredATraceTellsOfNoSpeed) {
  StepWatch watch;
  watch.See(StepOf(1, 0), /*keeps_steps=*/true);
  const drawing::Trace trace = watch.MakeTrace();
  ASSERT_EQ(trace.steps.size(), 1);
  EXPECT_FALSE(trace.steps[0].has_speed());
}

}  // namespace
}  // namespace convene::evaluate
