#include "planner/share_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "planner/invented_costs_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

TEST(SharesByRate, AreTheInverseOfWhatRanksTake) {
  EXPECT_EQ(SharesByRate(std::vector<double>{1, 3}, 16), (std::vector{3, 1}));
  EXPECT_EQ(SharesByRate(std::vector<double>{1, 1}, 7), (std::vector{4, 3}));
  EXPECT_EQ(SharesByRate(std::vector<double>{1, 1000}, 8), (std::vector{7, 1}));
  for (const int num_experts : {3, 8, 60, 160}) {
    const std::vector<int> shares = SharesByRate(std::vector<double>{1, 1.5, 2.2}, num_experts);
    EXPECT_EQ(num_experts % std::accumulate(shares.begin(), shares.end(), 0), 0);
    EXPECT_TRUE(std::ranges::is_sorted(shares, std::greater()));
    EXPECT_GE(shares.back(), 1);
  }
}

// Two ranks, the second of which takes `factor` times as long.
struct Unlike {
  explicit Unlike(double factor) {
    cost::StepCosts costs = InventedCosts(2, 1e10);
    if (factor != 1) costs.rank_factors = {1, factor};
    profile.steps = {costs};
    question.num_ranks = 2;
    question.allowed.layout = true;
    question.memory_of = [](const RankSetup&, const plan::Plan&, int) -> Result<RankMemory> {
      return RankMemory{.weights_bytes = 1};
    };
    question.memory_per_rank = [](int) { return uint64_t{1} << 30; };
    question.bytes_of = [](const std::string&, plan::Wire) { return strategy::ElementBytes(); };
    question.clock = [] { return 0.0; };
    // They may be better still, and would be chosen.
    question.passes_off = {"disaggregated"};
  }

  model::ModelSpec spec = InventedSpec(8);
  cost::MachineProfile profile;
  Workload workload = {.requests = {{512, 4}}, .batch = 16};
  MeasuredSource source{profile};
  PlanQuestion question{.spec = spec, .workload = workload, .source = source};
};

int NumUnequal(const PlanAnswer& answer) {
  return static_cast<int>(std::ranges::count_if(answer.candidates, [](const Candidate& one) {
    return !one.plan.layout.expert_weights.empty();
  }));
}

TEST(SharePass, ASlowRankGetsFewerExpertsAndTheStepIsFaster) {
  Unlike unlike(3);
  // Whole layers on each rank may be better still.
  unlike.question.passes_off.emplace_back("micro_batches");
  const PlanAnswer answer = Search(unlike);
  const Candidate& chosen = ChosenOf(answer);
  EXPECT_EQ(chosen.plan.layout.expert_weights, (std::vector{3, 1})) << Describe(chosen);
  // Candidates are sorted: the first with like shares is the best of them.
  const auto alike = std::ranges::find_if(answer.candidates, [](const Candidate& one) {
    return one.is_ranked() && one.plan.layout.expert_weights.empty();
  });
  ASSERT_TRUE(alike != answer.candidates.end());
  EXPECT_LT(chosen.figures->score, alike->figures->score);
}

TEST(SharePass, LeavesRanksAloneThatAreAlike) {
  EXPECT_EQ(NumUnequal(Search(Unlike(1))), 0);
  EXPECT_GT(NumUnequal(Search(Unlike(3))), 0);
}

}  // namespace
}  // namespace convene::planner
