#include "planner/disaggregated_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/disaggregated_solver.h"
#include "planner/invented_costs_test.h"
#include "planner/predict_step.h"

namespace convene::planner {
namespace {

using strategy::AttentionOrder;

std::vector<strategy::SequenceRows> Prompts(int length, int count) {
  return std::vector(static_cast<size_t>(count),
                     strategy::SequenceRows{.num_tokens = length, .prompt_length = length});
}

model::ModelSpec WithSharedExperts(int num_layers) {
  model::ModelSpec spec = InventedSpec(num_layers);
  for (model::LayerSpec& layer : spec.layers) layer.moe->shared_intermediate_size = 1024;
  return spec;
}

// Seconds of the layers of a step as the simulator has it, without embedding and head.
double SimulatedLayers(const model::ModelSpec& spec, const strategy::Roles& roles,
                       const DisaggregatedPipeline& pipeline,
                       const std::vector<strategy::SequenceRows>& sequences,
                       const StepPricer& pricer) {
  StepQuestion question{.spec = spec};
  question.options.roles = roles;
  question.options.pipeline.micro_batches = pipeline.micro_batches;
  question.options.pipeline.chunks = pipeline.chunks;
  question.options.pipeline.order = pipeline.order;
  question.options.prunes_last_layer = false;
  question.groups.resize(static_cast<size_t>(roles.num_groups()), sequences);
  const Result<PredictedStep> step = PredictStep(question, pricer);
  CHECK(step.ok(), "{}", step.error().message);
  double first = 1e9;
  double last = 0;
  for (size_t id = 0; id < step->schedule.tasks.size(); ++id) {
    if (step->schedule.tasks[id].layer < 0) continue;
    first = std::min(first, step->timeline.tasks[id].start);
    last = std::max(last, step->timeline.tasks[id].end);
  }
  return last - first;
}

TEST(DisaggregatedLines, GiveTheTimeThatTheScheduleTakes) {
  const model::ModelSpec spec = WithSharedExperts(8);
  for (const double link : {1e9, 1e10}) {
    const cost::StepCosts costs = InventedCosts(3, link);
    const MeasuredPricer pricer(costs);
    const strategy::Roles roles = strategy::Roles::Disaggregated(1, 2);
    const std::vector<strategy::SequenceRows> sequences = Prompts(256, 8);
    const auto fitted =
        FitDisaggregatedLines({.spec = spec, .roles = roles, .sequences = sequences}, pricer);
    ASSERT_TRUE(fitted) << fitted.error().message;
    EXPECT_GT(fitted->least_r2, 0.98);
    EXPECT_EQ(fitted->lines.num_layers, 8);
    EXPECT_TRUE(fitted->lines.has_shared());
    for (const int r1 : {1, 2, 4}) {
      for (const int r2 : {1, 3}) {
        for (const AttentionOrder order : {AttentionOrder::kAsas, AttentionOrder::kAass}) {
          const DisaggregatedPipeline pipeline{.micro_batches = r1, .chunks = r2, .order = order};
          const double simulated = SimulatedLayers(spec, roles, pipeline, sequences, pricer);
          const double by_lines = RunLanes(fitted->lines, pipeline, 256.0 * 8 / r1).seconds;
          EXPECT_NEAR(by_lines / simulated, 1, 0.1) << Words(pipeline) << ", link " << link;
        }
      }
    }
  }
}

TEST(DisaggregatedLines, AreOfTheSlowestRankOfAKind) {
  const model::ModelSpec spec = InventedSpec(2);
  const cost::StepCosts costs = InventedCosts(4, 1e9);
  const MeasuredPricer pricer(costs);
  const auto of = [&](const strategy::Layout& layout) {
    const auto fitted = FitDisaggregatedLines(
        {.spec = spec, .roles = layout, .sequences = Prompts(512, 4)}, pricer);
    CHECK(fitted.ok(), "{}", fitted.error().message);
    return fitted->lines;
  };
  const DisaggregatedLines even = of({.attention_dp = 2, .expert_ep = 2, .disaggregates = true});
  const DisaggregatedLines uneven =
      of({.attention_dp = 2, .expert_ep = 2, .expert_weights = {3, 1}, .disaggregates = true});
  EXPECT_NEAR(uneven.experts.per_row / even.experts.per_row, 1.5, 0.05);
  EXPECT_NEAR(uneven.attention.At(512) / even.attention.At(512), 1, 0.01);
  // Heads divided: half of the products of as many rows, and exchanges besides.
  const DisaggregatedLines by_heads =
      of({.attention_tp = 2, .attention_dp = 1, .expert_ep = 2, .disaggregates = true});
  EXPECT_GT(by_heads.attention.once, even.attention.once);
  EXPECT_FALSE(even.has_shared());
}

TEST(DisaggregatedLines, AModelWithoutExpertsIsAnError) {
  model::ModelSpec spec = InventedSpec(2);
  for (model::LayerSpec& layer : spec.layers) {
    layer.moe.reset();
    layer.dense_intermediate_size = 64;
  }
  const cost::StepCosts costs = InventedCosts(2, 1e9);
  const auto fitted = FitDisaggregatedLines(
      {.spec = spec, .roles = strategy::Roles::Disaggregated(1, 1), .sequences = Prompts(8, 1)},
      MeasuredPricer(costs));
  ASSERT_FALSE(fitted);
  EXPECT_THAT(fitted.error().message, testing::HasSubstr("no experts"));
}

}  // namespace
}  // namespace convene::planner
