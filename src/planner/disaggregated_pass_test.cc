#include "planner/disaggregated_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "planner/invented_costs_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using testing::HasSubstr;

struct AskedOfPass {
  explicit AskedOfPass(int num_ranks, double link = 1e9,
                       const std::vector<double>& rank_factors = {}) {
    cost::StepCosts costs = InventedCosts(num_ranks, link);
    for (const double factor : rank_factors) {
      costs.rank_states.push_back({.memory = factor, .compute = factor});
    }
    profile.steps = {costs};
    question.num_ranks = num_ranks;
    question.constraints.num_ranks = num_ranks;
    question.constraints.keeps_step_tokens = true;
    question.memory_of = [](const RankSetup&, const plan::Plan&, int) -> Result<RankMemory> {
      return RankMemory{.weights_bytes = 1};
    };
    question.memory_per_rank = [](int) { return uint64_t{1} << 30; };
    question.bytes_of = [](const std::string&, plan::Wire) { return strategy::ElementBytes(); };
    question.clock = [] { return 0.0; };
  }

  model::ModelSpec spec = InventedSpec(8);
  cost::MachineProfile profile;
  Workload workload = {.requests = {{512, 16}}, .batch = 12};
  MeasuredSource source{profile};
  PlanQuestion question{.spec = spec, .workload = workload, .source = source};
};

std::vector<Candidate> Disaggregated(const PlanAnswer& answer) {
  std::vector<Candidate> found;
  for (const Candidate& one : answer.candidates) {
    if (one.plan.layout.disaggregates) found.push_back(one);
  }
  return found;
}

TEST(DisaggregatedPass, ComparesSuchLayoutsWithAllOthersAtTheirSchedulesPrices) {
  const AskedOfPass asked(4);
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer) << answer.error().message;
  std::set<int> attention_ranks;
  std::set<plan::DisaggregatedStrategy> strategies;
  int solved = 0;
  for (const Candidate& one : Disaggregated(*answer)) {
    EXPECT_THAT(one.added_by, testing::AnyOf("disaggregated", "turns"));
    EXPECT_TRUE(plan::CheckLayout(one.plan)) << Describe(one);
    if (!one.is_ranked()) {
      EXPECT_FALSE(one.reason.empty());
      continue;
    }
    attention_ranks.insert(one.plan.layout.num_attention_ranks());
    strategies.insert(plan::StrategyOf(one.plan.pipeline));
    solved += one.plan.lines.empty() ? 0 : 1;
    const auto figures = search.FiguresOf(one.setup, one.plan, asked.workload);
    ASSERT_TRUE(figures);
    EXPECT_DOUBLE_EQ(figures->score, one.figures->score) << Describe(one);
  }
  EXPECT_EQ(attention_ranks, (std::set{1, 2, 3}));
  EXPECT_EQ(strategies.size(), 3u);  // naive, PPPipe and fine
  EXPECT_GT(solved, 0);
}

TEST(DisaggregatedPass, TurnsThatAreSolvedForEachStepAreAsGoodAsFixedOnes) {
  for (const double link : {3e8, 1e9, 1e10}) {
    const AskedOfPass asked(3, link);
    const std::vector<Candidate> all = Disaggregated(Search(asked));
    double fixed = 1e9;
    double solved = 1e9;
    for (const Candidate& one : all) {
      if (!one.is_ranked()) continue;
      double& best = one.plan.lines.empty() ? fixed : solved;
      best = std::min(best, one.figures->score);
    }
    // Lines are within a tenth of the schedule, and fixed turns are the best of all by price.
    EXPECT_LE(solved, 1.07 * fixed) << link;
  }
}

TEST(DisaggregatedPass, PlansWithLinesAreWhatTheirFilesSay) {
  const AskedOfPass asked(3, 3e8);
  int found = 0;
  for (const Candidate& one : Disaggregated(Search(asked))) {
    if (one.plan.lines.empty()) continue;
    ++found;
    const Result<plan::Plan> again =
        plan::PlanFromJson(nlohmann::json::parse(plan::ToJson(one.plan).dump()));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, one.plan);
    EXPECT_THAT(Describe(one),
                HasSubstr("micro-batches, chunks and order solved for each step, of at most"));
  }
  EXPECT_GT(found, 0);
}

TEST(DisaggregatedPass, ALayoutThatWasAskedForIsTheOnlyOne) {
  AskedOfPass asked(3);
  asked.question.constraints.layout =
      strategy::Layout{.attention_dp = 1, .expert_ep = 2, .disaggregates = true};
  const PlanAnswer answer = Search(asked);
  EXPECT_EQ(ChosenOf(answer).plan.layout, *asked.question.constraints.layout);
  for (const Candidate& one : answer.candidates) {
    if (!one.plan.layout.disaggregates) {
      EXPECT_FALSE(one.is_ranked()) << Describe(one);
    }
  }
  asked.question.constraints.micro_batches = 2;
  asked.question.constraints.pipeline = strategy::Pipeline{.chunks = 3};
  const std::vector<Candidate> fixed = Disaggregated(Search(asked));
  ASSERT_EQ(fixed.size(), 1u);
  EXPECT_EQ(fixed.front().plan.pipeline.micro_batches, 2);
  EXPECT_EQ(fixed.front().plan.pipeline.chunks, 3);
  EXPECT_TRUE(fixed.front().plan.lines.empty());
}

// With one sequence all that counts is what is read: the rank with the fast memory is not the one
// with the fast cores, and gets more of the experts.
TEST(DisaggregatedPass, SharesFollowMemoryWhereItIsWhatTasksWaitFor) {
  AskedOfPass asked(3, 1e10);
  asked.profile.steps.front().rank_states = {
      {}, {.memory = 1, .compute = 4}, {.memory = 3, .compute = 1}};
  asked.workload = {.requests = {{1, 64}}, .batch = 1};
  const std::vector<Candidate> all = Disaggregated(Search(asked));
  const auto with = [&](const std::vector<int>& weights) {
    const auto found = std::ranges::find_if(all, [&](const Candidate& one) {
      return one.is_ranked() && one.plan.layout.attention_ranks.empty() &&
             one.plan.layout.expert_weights == weights;
    });
    EXPECT_NE(found, all.end()) << weights.size() << " weights";
    return found == all.end() ? 0 : found->figures->score;
  };
  // By memory 3 : 1; by cores 1 : 4, in sixteenths.
  EXPECT_LT(with({3, 1}), with({3, 13}));
}

TEST(DisaggregatedPass, SlowRanksGetFewerExperts) {
  const AskedOfPass asked(3, 1e9, {1, 1, 3});
  const std::vector<Candidate> all = Disaggregated(Search(asked));
  const auto unequal = std::ranges::find_if(
      all, [](const Candidate& one) { return !one.plan.layout.expert_weights.empty(); });
  ASSERT_NE(unequal, all.end());
  EXPECT_EQ(unequal->plan.layout.expert_weights, (std::vector{3, 1}));
  // They come before the same layout with like shares.
  const auto equal = std::ranges::find_if(all, [](const Candidate& one) {
    return one.is_ranked() && one.plan.layout.expert_ep == 2 &&
           one.plan.layout.expert_weights.empty();
  });
  ASSERT_NE(equal, all.end());
  EXPECT_LT(unequal->figures->score, equal->figures->score);
}

// Whichever rank is the slow one, it gets the role in which it holds the others back least.
TEST(DisaggregatedPass, UnlikeRanksTakeTheRolesThatTheSolverGivesThem) {
  std::vector<double> best;
  for (const size_t slow : {0, 1, 2}) {
    std::vector<double> factors = {1, 1, 1};
    factors[slow] = 4;
    const AskedOfPass asked(3, 1e10, factors);
    const Candidate* fastest = nullptr;
    const std::vector<Candidate> all = Disaggregated(Search(asked));
    for (const Candidate& one : all) {
      const bool is_faster =
          one.is_ranked() && (fastest == nullptr || one.figures->score < fastest->figures->score);
      if (is_faster) fastest = &one;
    }
    ASSERT_NE(fastest, nullptr);
    best.push_back(fastest->figures->score);
    // No other ranks with attention would have been faster.
    for (const std::vector<int>& ranks :
         std::vector<std::vector<int>>{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}}) {
      strategy::Layout layout = fastest->plan.layout;
      layout.attention_dp = static_cast<int>(ranks.size());
      layout.attention_tp = 1;
      layout.expert_ep = 3 - layout.attention_dp;
      layout.expert_weights.clear();
      layout.attention_ranks = ranks;
      AskedOfPass other(3, 1e10, factors);
      other.question.constraints.layout = layout;
      EXPECT_LE(best.back(), 1.02 * ChosenOf(Search(other)).figures->score)
          << Describe(*fastest) << " against " << plan::ToText(layout);
    }
  }
  // It does not matter in which order ranks were started.
  EXPECT_NEAR(best[1] / best[0], 1, 0.02);
  EXPECT_NEAR(best[2] / best[0], 1, 0.02);
}

TEST(DisaggregatedPass, OfManyRanksLayoutsThatAreNotPricedSayBehindWhichTheyAre) {
  const AskedOfPass asked(16);
  int spared = 0;
  std::set<std::pair<int, int>> priced;
  for (const Candidate& one : Disaggregated(Search(asked))) {
    if (one.is_ranked()) {
      priced.insert({one.plan.layout.attention_dp, one.plan.layout.attention_tp});
    } else if (one.reason.find("% longer than") != std::string::npos) {
      ++spared;
    }
  }
  EXPECT_EQ(priced.size(), 6u);
  EXPECT_GT(spared, 0);
}

TEST(DisaggregatedPass, HasNothingToDoWithoutExpertsOrWithOtherWishes) {
  AskedOfPass asked(3);
  asked.question.constraints.layout = plan::DefaultLayout(3);
  EXPECT_TRUE(Disaggregated(Search(asked)).empty());
  asked.question.allowed.layout = true;
  asked.question.constraints = {.num_ranks = 3, .decode_experts = "tp3"};
  EXPECT_TRUE(Disaggregated(Search(asked)).empty());
  asked.question.constraints = {.num_ranks = 3};
  asked.question.constraints.pipeline = strategy::Pipeline{.overlap = false};
  EXPECT_TRUE(Disaggregated(Search(asked)).empty());
  AskedOfPass dense(3);
  for (model::LayerSpec& layer : dense.spec.layers) {
    layer.moe.reset();
    layer.dense_intermediate_size = 512;
  }
  EXPECT_TRUE(Disaggregated(Search(dense)).empty());
}

}  // namespace
}  // namespace convene::planner
