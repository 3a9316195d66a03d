#include "evaluate/step_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/step_recorder.h"
#include "strategy/attention_sizes.h"
#include "strategy/step.h"

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
  watch.SetRun("int8", 2, "a plan of a model", /*int8_kv=*/false);
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

// Keys and values on a disk, in layers that all have windows: what is read of them has no size but
// its own, and is less than nothing without it.
TEST(StepWatch, AStepWhoseKeysAndValuesLieOnADiskIsReadAgain) {
  model::ModelSpec spec;
  spec.hidden_size = 64;
  spec.vocab_size = 100;
  spec.layers.resize(2);
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention = {
        .num_heads = 2, .num_kv_heads = 2, .head_dim = 32, .value_dim = 32, .window = 128};
    layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 32};
  }
  const auto schedule = std::make_shared<schedule::Schedule>(strategy::BuildStep(
      spec, {.prunes_last_layer = true, .spilled_kv = strategy::SpilledKv{.parts = 2}}));
  runtime::StepRecorder recorder(nullptr);
  recorder.Begin();
  // Two prompts, of which the first goes on.
  const std::vector<strategy::SequenceRows> sequences = {
      {.first_position = 300, .num_tokens = 100, .num_wanted = 1, .prompt_length = 400},
      {.num_tokens = 200, .num_wanted = 1, .prompt_length = 200}};
  using enum schedule::SizeKind;
  for (const bool wanted : {false, true}) {
    for (const schedule::SizeKind kind : {kTokens, kKeys, kCached}) {
      for (int layer = -1; layer < 2; ++layer) {
        recorder.Set(
            {.kind = kind, .layer = layer, .from = 0, .wanted = wanted},
            strategy::CountAttention(kind, wanted, {.window = layer < 0 ? 0 : 128}, sequences));
      }
    }
  }
  recorder.Set({.kind = kWanted, .from = 0}, 2);
  const schedule::Timeline timeline{
      .tasks = std::vector<schedule::TaskTime>(schedule->tasks.size(), {0, 1})};
  const std::vector<std::vector<int64_t>> counts;
  runtime::RecordedStep step = recorder.Gather(
      {.schedule = schedule, .timeline = &timeline, .start = {}, .expert_counts = &counts});
  step.num_tokens = 300;
  step.num_sequences = 2;
  StepWatch watch;
  watch.See(step, /*keeps_steps=*/true);
  const auto trace = drawing::TraceFromJson(drawing::TraceJson(watch.MakeTrace()));
  ASSERT_TRUE(trace) << trace.error().message;
  for (const schedule::Task& task : trace->steps.at(0).schedule.tasks) {
    if (task.kind != schedule::TaskKind::kReadKv) continue;
    // 127 positions before the first prompt's tokens, and half of a block of each sequence.
    const double token_bytes = 2 * (32 + 32) * 2;
    ASSERT_EQ(task.work.disk_bytes.size(), 1);
    EXPECT_DOUBLE_EQ(task.work.disk_bytes[0].factor, token_bytes / 2 * (127 + 2 * 32));
  }
}

}  // namespace
}  // namespace convene::evaluate
