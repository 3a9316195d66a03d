#include "planner/operator_pricer.h"

#include <gtest/gtest.h>

#include "cost/presets.h"
#include "planner/whole_step.h"

namespace convene::planner {
namespace {

model::ModelSpec Spec() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 14336};
  model::ModelSpec spec;
  spec.hidden_size = 4096;
  spec.vocab_size = 32000;
  spec.layers.assign(8, layer);
  return spec;
}

double Seconds(const OperatorSource& source, const Conditions& conditions, int tokens) {
  const ShortModel model = Shorten(Spec(), {});
  const auto pricer =
      source.PricerOf({.num_ranks = 4, .num_threads = 1, .weights = "bf16"}, conditions);
  CHECK(pricer.ok(), "{}", pricer.error().message);
  strategy::StepOptions options;
  options.roles = strategy::Layout{.attention_dp = 4, .expert_ep = 4};
  const std::vector<std::vector<strategy::SequenceRows>> groups(4, {{.num_tokens = tokens}});
  const auto step = PredictWholeStep(model, options, groups, **pricer);
  CHECK(step.ok(), "{}", step.error().message);
  return step->seconds;
}

TEST(OperatorPricer, StepsOfAPresetTakeLongerUnderWorseConditions) {
  const cost::MachineProfile machine = *cost::Preset("a100-nvlink");
  const OperatorSource source(machine);
  EXPECT_EQ(source.ThreadsOf(8, "bf16"), (std::vector<int>{1}));
  EXPECT_TRUE(source.ThreadsOf(8, "f32").empty());
  const double usual = Seconds(source, {}, 2048);
  EXPECT_GT(usual, 0);
  EXPECT_GT(Seconds(source, {.machine = {.compute = 2}}, 2048), 1.3 * usual);
  EXPECT_GT(Seconds(source, {.link = 10}, 2048), 1.1 * usual);
  const double few = Seconds(source, {}, 1);
  EXPECT_GT(Seconds(source, {.machine = {.memory = 2}}, 1), 1.3 * few);
  EXPECT_LT(Seconds(source, {.machine = {.compute = 2}}, 1), 1.1 * few);
}

TEST(OperatorPricer, FormatsWithoutOperatorsAreRefused) {
  const cost::MachineProfile machine = *cost::Preset("v100-pcie3");
  const OperatorSource source(machine);
  EXPECT_FALSE(source.PricerOf({.num_ranks = 1, .weights = "f32"}, {}).ok());
  // It has no rate for products of bytes.
  EXPECT_TRUE(source.ThreadsOf(1, "int8").empty());
}

}  // namespace
}  // namespace convene::planner
