// Steps as strategies build them, on presets: which kernels price their exchanges.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cost/all_reduces.h"
#include "cost/operator_prices.h"
#include "cost/presets.h"
#include "planner/operator_pricer.h"
#include "planner/predict_step.h"
#include "schedule/activity_graph.h"
#include "strategy/step.h"

namespace convene::planner {
namespace {

model::ModelSpec SpecOfExchanges() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{.num_experts = 64, .top_k = 8, .intermediate_size = 2048};
  model::ModelSpec spec;
  spec.hidden_size = 4096;
  spec.vocab_size = 32000;
  spec.layers.assign(3, layer);
  return spec;
}

// 16 sequences of so many new tokens each.
StepQuestion QuestionOfExchanges(const model::ModelSpec& spec, const strategy::Layout& layout,
                                 int tokens, const strategy::Pipeline& pipeline = {}) {
  strategy::StepOptions options;
  options.roles = layout;
  options.pipeline = pipeline;
  const int num_groups = layout.attention_dp;
  std::vector<std::vector<strategy::SequenceRows>> groups(num_groups);
  for (int i = 0; i < 16; ++i) groups[i % num_groups].push_back({.num_tokens = tokens});
  return {.spec = spec, .options = options, .groups = groups};
}

cost::MachineProfile Without(cost::MachineProfile machine, std::string_view beginning) {
  const auto is_named = [&](const auto& one) { return one.first.starts_with(beginning); };
  std::erase_if(machine.operators, is_named);
  std::erase_if(machine.measured_on, is_named);
  return machine;
}

double SecondsOn(const cost::MachineProfile& machine, const StepQuestion& question,
                 int comm_budget = 0) {
  const OperatorPricer pricer(machine, {.comm_budget = comm_budget});
  const auto step = PredictStep(question, pricer);
  CHECK(step.ok(), "{}", step.error().message);
  return step->timeline.seconds();
}

TEST(ExchangeKernels, TensorParallelStepsAreThoseOfAnEngineWithAllReduces) {
  const model::ModelSpec spec = SpecOfExchanges();
  const StepQuestion question = QuestionOfExchanges(spec, {.attention_tp = 8, .expert_tp = 8}, 1);
  const schedule::Schedule schedule = strategy::BuildStep(spec, question.options);
  const cost::ExpectedSizes sizes = ExpectSizes(question);
  const auto found =
      cost::FindAllReduces(schedule, schedule::BuildActivityGraph(schedule), spec,
                           [&](const schedule::Size& size) { return sizes.at(size); });
  // Two of each layer; the last one's sums go no further.
  EXPECT_EQ(found.size(), 2 * spec.layers.size() - 1);
  const cost::MachineProfile machine = *cost::Preset("h100-nvlink");
  EXPECT_LT(SecondsOn(machine, question),
            0.95 * SecondsOn(Without(machine, "all_reduce"), question));
  // Where rows go to whole experts there are none.
  const StepQuestion whole = QuestionOfExchanges(spec, {.attention_dp = 8, .expert_ep = 8}, 1);
  EXPECT_EQ(SecondsOn(machine, whole), SecondsOn(Without(machine, "all_reduce"), whole));
}

TEST(ExchangeKernels, ABudgetPricesExchangesBesideExpertsByKernelsOfSoManyMultiprocessors) {
  const model::ModelSpec spec = SpecOfExchanges();
  const strategy::Layout layout{.attention_dp = 8, .expert_ep = 8};
  const cost::MachineProfile machine = *cost::Preset("h100-nvlink");
  const StepQuestion cut = QuestionOfExchanges(
      spec, layout, 4096, {.chunks = 2, .cut = strategy::ChunkCut::kExperts, .overlap = true});
  // Fewer move less, and those that are known by a table less than the limit of others.
  EXPECT_GT(SecondsOn(machine, cut, 4), 1.2 * SecondsOn(machine, cut, 24));
  const cost::MachineProfile without = Without(Without(machine, "dispatch"), "combine");
  EXPECT_NE(SecondsOn(machine, cut, 12), SecondsOn(without, cut, 12));
  // With nothing beside them they may take what they need.
  const StepQuestion whole = QuestionOfExchanges(spec, layout, 4096);
  EXPECT_LT(SecondsOn(machine, whole, 4), 1.1 * SecondsOn(machine, whole));
}

}  // namespace
}  // namespace convene::planner
