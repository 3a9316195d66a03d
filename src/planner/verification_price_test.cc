#include "planner/verification_price.h"

#include <gtest/gtest.h>

#include <vector>

#include "planner/invented_costs_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

// Two ranks whose exchanges were mispredicted by up to a fifth.
struct Work {
  Work() {
    cost::StepCosts costs = InventedCosts(2, 1e9);
    costs.exchange_held_out = cost::HeldOut{.low = -0.2, .high = 0.2};
    profile.steps = {costs};
    question.num_ranks = 2;
    question.allowed.layout = true;
    question.constraints.num_ranks = 2;
    question.memory_of = [](const RankSetup&, const plan::Plan&, int) -> Result<RankMemory> {
      return RankMemory{.weights_bytes = uint64_t{1} << 30};
    };
    question.memory_per_rank = [](int) { return uint64_t{1} << 40; };
    question.bytes_of = [](const std::string&, plan::Wire) { return strategy::ElementBytes(); };
    question.clock = [] { return 0.0; };
    const Result<PlanAnswer> found = SearchPlan(search);
    EXPECT_TRUE(found.ok());
    if (found) answer = *found;
  }

  VerificationPrice Price(int64_t num_tokens, const std::vector<int>& plans,
                          const TrialShape& shape = {}) const {
    return PriceVerification(search, answer, plans, num_tokens, shape);
  }
  std::vector<int> ChosenAnd(int other) const { return {answer.chosen, other}; }
  // The plan of which it is worth most to know whether it is faster.
  int most_doubtful() const {
    int doubtful = answer.chosen;
    for (int i = 0; i <= last_ranked(); ++i) {
      if (!answer.candidates[i].is_ranked()) continue;
      if (Price(1, ChosenAnd(i)).gain > Price(1, ChosenAnd(doubtful)).gain) doubtful = i;
    }
    return doubtful;
  }
  int last_ranked() const {
    int last = 0;
    for (int i = 0; i < std::ssize(answer.candidates); ++i) {
      if (answer.candidates[i].is_ranked()) last = i;
    }
    return last;
  }

  model::ModelSpec spec = InventedSpec(8);
  cost::MachineProfile profile;
  Workload workload = {.requests = {{512, 64}}, .batch = 8};
  MeasuredSource source{profile};
  PlanQuestion question{.spec = spec, .workload = workload, .source = source};
  PlanSearch search{question};
  PlanAnswer answer;
};

TEST(VerificationPrice, GainsGrowWithTheWorkAndTrialsDoNot) {
  const Work work;
  const std::vector<int> plans = work.ChosenAnd(work.most_doubtful());
  const VerificationPrice little = work.Price(1, plans);
  const VerificationPrice much = work.Price(1'000'000'000'000'000, plans);
  EXPECT_GT(little.gain, 0);
  EXPECT_NEAR(much.gain, 1e15 * little.gain, 1e-6 * much.gain);
  EXPECT_EQ(much.runs, little.runs);
  EXPECT_FALSE(little.is_worth_it());
  EXPECT_TRUE(much.is_worth_it()) << much.gain << " s gained by " << much.runs << " s";
  EXPECT_NEAR(much.work, 1e15 * ChosenOf(work.answer).figures->score, 1e-6 * much.work);
}

TEST(VerificationPrice, NothingGainsMoreThanAllOfTheWork) {
  Work work;
  work.profile.steps.front().exchange_held_out = cost::HeldOut{.low = -0.99, .high = 500};
  PlanSearch search(work.question);
  const Result<PlanAnswer> found = SearchPlan(search);
  ASSERT_TRUE(found) << found.error().message;
  double most = 0;
  for (int i = 0; i < std::ssize(found->candidates); ++i) {
    if (!found->candidates[i].is_ranked()) continue;
    const VerificationPrice price =
        PriceVerification(search, *found, std::vector{found->chosen, i}, 1000, {});
    EXPECT_LE(price.gain, price.work);
    most = std::max(most, price.gain / price.work);
  }
  EXPECT_GT(most, 0.25) << "nothing is in doubt";
}

TEST(VerificationPrice, APlanThatIsSurelySlowerGainsNothing) {
  const Work work;
  const VerificationPrice close = work.Price(1000, work.ChosenAnd(work.most_doubtful()));
  const VerificationPrice far = work.Price(1000, work.ChosenAnd(work.last_ranked()));
  EXPECT_LT(far.gain, close.gain);
  EXPECT_EQ(work.Price(1000, {work.answer.chosen}).gain, 0);
}

TEST(VerificationPrice, LoadsEachDivisionOnceAndForAllRanksOfAHost) {
  const Work work;
  const TrialShape shape{.ranks_per_host = 2, .disk_bytes_per_second = 1 << 30};
  const auto found = std::ranges::find_if(work.answer.candidates, [](const Candidate& one) {
    return one.is_ranked() && one.setup.num_ranks == 2 && !one.plan.decode;
  });
  ASSERT_TRUE(found != work.answer.candidates.end());
  const auto plan = static_cast<int>(found - work.answer.candidates.begin());
  EXPECT_EQ(work.Price(1, {plan}, shape).loading, 2);
  EXPECT_EQ(work.Price(1, {plan, plan}, shape).loading, 2);
  EXPECT_EQ(work.Price(1, {plan}).loading, 0);  // nothing is known
}

}  // namespace
}  // namespace convene::planner
