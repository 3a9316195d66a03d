// The search's pass over what experts leave to the exchanges beside them, on GPUs that are not
// here.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "cost/presets.h"
#include "planner/asked_question_test.h"
#include "planner/operator_pricer.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

// Experts of DeepSeek's kind, many and narrow, on eight GPUs: about as long exchanges as products.
struct AskedOfGpus {
  AskedOfGpus() : asked(1e9) {
    asked.spec.hidden_size = 4096;
    for (model::LayerSpec& layer : asked.spec.layers) {
      layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
      layer.moe = model::MoeSpec{.num_experts = 64, .top_k = 8, .intermediate_size = 2048};
    }
    asked.workload = {.requests = {{4096, 1}}, .batch = 64};
    question.num_ranks = 8;
    question.constraints.num_ranks = 8;
    question.constraints.layout = strategy::Layout{.attention_dp = 8, .expert_ep = 8};
    question.step_tokens = 4096;
  }

  Asked asked;
  cost::MachineProfile machine = *cost::Preset("h100-nvlink");
  OperatorSource source{machine};
  PlanQuestion question = [this] {
    PlanQuestion of{.spec = asked.spec, .workload = asked.workload, .source = source};
    of.memory_of = asked.question.memory_of;
    of.memory_per_rank = asked.question.memory_per_rank;
    of.bytes_of = asked.question.bytes_of;
    of.clock = asked.question.clock;
    of.constraints.keeps_step_tokens = true;
    return of;
  }();
};

// By budget, what a pipeline takes of what it takes without.
std::map<int, double> TriedOf(const PlanAnswer& answer) {
  std::map<int, double> tried;
  for (const Candidate& one : answer.candidates) {
    if (!one.is_ranked() || one.plan.comm_budget == 0) continue;
    plan::Plan without = one.plan;
    without.comm_budget = 0;
    for (const Candidate& other : answer.candidates) {
      if (!other.is_ranked() || !(other.plan == without) || other.setup != one.setup) continue;
      const auto [found, is_new] =
          tried.try_emplace(one.plan.comm_budget, one.figures->score / other.figures->score);
      if (!is_new)
        found->second = std::min(found->second, one.figures->score / other.figures->score);
    }
  }
  return tried;
}

TEST(CommBudgets, AreTriedWhereExchangesRunBesideExpertsAndArePriced) {
  AskedOfGpus asked;
  const std::map<int, double> tried = TriedOf(Search(asked));
  ASSERT_GE(tried.size(), 2u);
  for (const auto& [budget, share] : tried) {
    EXPECT_EQ(budget % 4, 0);
    EXPECT_LE(budget, asked.machine.device->num_multiprocessors / 2);
    EXPECT_NE(share, 1) << budget;
  }
}

TEST(CommBudgets, AreNotTriedWithoutOverlapOrBySwitch) {
  AskedOfGpus without_overlap;
  without_overlap.question.constraints.pipeline = strategy::Pipeline{};
  without_overlap.question.constraints.micro_batches = 1;
  EXPECT_TRUE(TriedOf(Search(without_overlap)).empty());

  AskedOfGpus switched_off;
  switched_off.question.passes_off = {"comm_budget"};
  EXPECT_TRUE(TriedOf(Search(switched_off)).empty());
}

// Fewer than the link needs slow exchanges down, and more move nothing faster.
TEST(CommBudgets, AreFromWhatTheLinkOfAHostNeedsDownwards) {
  const auto budgets_of = [](const char* name) {
    const cost::MachineProfile machine = *cost::Preset(name);
    return OperatorSource(machine).CommBudgets();
  };
  EXPECT_EQ(budgets_of("h100-nvlink"), (std::vector<int>{28, 24, 20, 16, 12, 8, 4}));
  EXPECT_EQ(budgets_of("h800-nvlink"), (std::vector<int>{12, 8, 4}));
  EXPECT_EQ(budgets_of("a6000-pcie4"), std::vector<int>{4});
}

// What threads that are left alone gain on CPUs was not measured.
TEST(CommBudgets, AreNotTriedByMeasuredCosts) {
  const cost::MachineProfile host = *cost::Preset("epyc-9654");
  EXPECT_TRUE(MeasuredSource(host).CommBudgets().empty());
  EXPECT_TRUE(OperatorSource(host).CommBudgets().empty());
}

}  // namespace
}  // namespace convene::planner
