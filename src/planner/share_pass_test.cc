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
    if (factor != 1) costs.rank_states = {{}, {.memory = factor, .compute = factor}};
    profile.steps = {costs};
    question.num_ranks = 2;
    question.allowed.layout = true;
    question.constraints.keeps_step_tokens = true;
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

// The smaller rank has room for 5 of 16 experts, the other one for 14.
TEST(SharePass, ExpertsGoWhereThereIsMemoryForThem) {
  Unlike unlike(1);
  constexpr uint64_t kRest = 10'000'000;
  constexpr uint64_t kExpert = uint64_t{8} * 3 * 512 * 1024 * 2;
  unlike.question.rank_memory = {kRest + 5 * kExpert + 1000, kRest + 14 * kExpert + 1000};
  const auto& limits = unlike.question.rank_memory;
  unlike.question.memory_per_rank = [&](int) { return limits.front(); };
  unlike.question.constraints.num_ranks = 2;
  unlike.question.memory_of = [&](const RankSetup&, const plan::Plan& plan,
                                  int) -> Result<RankMemory> {
    const strategy::Roles roles = plan.layout;
    RankMemory tightest;
    double most = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const auto experts = static_cast<uint64_t>(roles.ExpertsOf(rank, 16).size);
      const RankMemory memory{
          .weights_bytes = kRest + experts * kExpert / plan.layout.expert_tp / plan.layout.stages,
          .limit_bytes = limits[static_cast<size_t>(rank)]};
      const double share =
          static_cast<double>(memory.total()) / static_cast<double>(memory.limit_bytes);
      if (share < most) continue;
      most = share;
      tightest = memory;
    }
    return tightest;
  };
  unlike.question.passes_off.emplace_back("hybrid");
  const PlanAnswer answer = Search(unlike);
  const Candidate& chosen = ChosenOf(answer);
  ASSERT_EQ(chosen.plan.layout.expert_weights.size(), 2u) << Describe(chosen);
  EXPECT_LE(chosen.memory.total(), chosen.memory_limit);
  for (const Candidate& one : answer.candidates) {
    const bool is_like = one.plan.layout.expert_ep == 2 && one.plan.layout.expert_weights.empty();
    if (is_like) {
      EXPECT_EQ(one.rejected_by, "memory") << Describe(one);
    }
  }
}

TEST(SharePass, LeavesRanksAloneThatAreAlike) {
  EXPECT_EQ(NumUnequal(Search(Unlike(1))), 0);
  EXPECT_GT(NumUnequal(Search(Unlike(3))), 0);
}

}  // namespace
}  // namespace convene::planner
