#include "cli/plan_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanOptionsTest : public CommandsTest {
 protected:
  // What the plan `json` becomes with options beside it.
  Result<plan::Plan> Beside(const std::string& json, const std::string& words,
                            int num_ranks) const {
    Write("plan.json", json);
    std::vector<std::string> given = {"--plan", Path("plan.json")};
    std::istringstream stream(words);
    for (std::string word; stream >> word;) given.push_back(word);
    std::reverse(given.begin(), given.end());
    CLI::App app;
    PlanOptions options;
    AddPlanOptions(app, options);
    app.parse(given);
    return ResolvePlan(options, model_, num_ranks);
  }
};

constexpr const char* kChunksOfExperts =
    R"({"version": 1, "layout": "attention=dp2,experts=ep2",)"
    R"( "pipeline": {"chunks": 3, "cut": "experts", "cuts": [0.25, 0.5], "micro_batches": 2}})";

TEST_F(PlanOptionsTest, NoOverlapLeavesThePlansChunksAsTheyAre) {
  const Result<plan::Plan> plan = Beside(kChunksOfExperts, "--no-overlap", 2);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->pipeline, (strategy::Pipeline{.chunks = 3,
                                                .cut = strategy::ChunkCut::kExperts,
                                                .overlap = false,
                                                .micro_batches = 1,
                                                .cuts = {0.25, 0.5}}));
}

TEST_F(PlanOptionsTest, ChunksAreNotChosenWithoutOverlap) {
  const char* automatic =
      R"({"version": 1, "layout": "attention=dp2,experts=ep2", "pipeline": {"chunks": "auto"}})";
  for (const auto& [json, words] :
       {std::pair(automatic, "--no-overlap"), {kChunksOfExperts, "--no-overlap --pipeline auto"}}) {
    const Result<plan::Plan> plan = Beside(json, words, 2);
    ASSERT_FALSE(plan) << words;
    EXPECT_THAT(plan.error().message, AllOf(HasSubstr("--no-overlap"), HasSubstr("--pipeline 1")));
  }
  const Result<plan::Plan> plan = Beside(automatic, "--no-overlap --pipeline 2", 2);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->pipeline, (strategy::Pipeline{.chunks = 2, .overlap = false}));
}

TEST_F(PlanOptionsTest, AStrategyForgetsHowThePlanCutExperts) {
  const Result<plan::Plan> plan = Beside(
      kChunksOfExperts,
      "--layout attention=dp1,experts=ep2 --disaggregate --strategy pppipe --micro-batches 3", 3);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->pipeline,
            (strategy::Pipeline{.micro_batches = 3, .dispatch_after_shared = true}));
}

TEST_F(PlanOptionsTest, ChunksOfExpertsAreRefusedWhereRanksHaveExpertsAlone) {
  const Result<plan::Plan> plan =
      Beside(R"({"version": 1, "layout": "attention=dp1,experts=ep2,disaggregate"})",
             "--pipeline 1:experts", 3);
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message, HasSubstr("use --pipeline 1:tokens"));
  const Outcome alone =
      Run({"run", model_, "--prompt", "x", "--layout", "attention=dp1,experts=ep2",
           "--disaggregate", "--pipeline", "1:experts"});
  EXPECT_EQ(alone.status, kUsage);
  EXPECT_THAT(alone.err, HasSubstr("use --pipeline 1:tokens"));
}

// The usage error of `convene run` on one process with these words.
class LayoutWordsTest : public CommandsTest {
 protected:
  std::string Refused(const std::string& words, int status = kUsage) const {
    std::vector<std::string> all = {"run", model_, "--prompt", "x"};
    std::istringstream stream(words);
    for (std::string word; stream >> word;) all.push_back(word);
    const Outcome outcome = Run(all);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    return outcome.err;
  }
};

TEST_F(LayoutWordsTest, AreQuotedAsTheyWereGiven) {
  EXPECT_THAT(Refused("--layout stages=2"),
              AllOf(HasSubstr("\"stages=2\" is no layout"), Not(HasSubstr("stages=2,dis"))));
  EXPECT_THAT(Refused("--layout stages=2 --disaggregate"), Not(HasSubstr("stages=2,dis")));
  EXPECT_THAT(Refused("--layout layers=pp2 --disaggregate"),
              AllOf(HasSubstr("\"layers=pp2\" gives each rank whole layers"),
                    HasSubstr("leave --disaggregate out")));
}

TEST_F(LayoutWordsTest, AreNotToldToDisaggregateWhereTheyDo) {
  const std::string words = "--layout attention=dp1,experts=ep2,shared=tp2";
  EXPECT_THAT(Refused(words), HasSubstr("unless they are on different ranks (--disaggregate)"));
  for (const std::string& both : {words + " --disaggregate", "--disaggregate " + words}) {
    EXPECT_THAT(Refused(both), AllOf(HasSubstr("divides shared experts into 2 slices"),
                                     Not(HasSubstr("unless they are on different ranks")),
                                     Not(HasSubstr("shared=tp2,disaggregate"))));
  }
}

TEST_F(LayoutWordsTest, NeedNotBeThereForDisaggregateUnlessNothingIsChosen) {
  EXPECT_THAT(Refused("--disaggregate", kFailure), HasSubstr("this is one process"));
  EXPECT_THAT(Refused("--disaggregate --strategy pppipe", kFailure),
              HasSubstr("this is one process"));
  EXPECT_THAT(Refused("--disaggregate --no-plan"), HasSubstr("give --layout, for instance"));
  EXPECT_THAT(Refused("--disaggregate --pipeline 2:experts"), HasSubstr("--pipeline 2:tokens"));
  const Outcome bench = Run({"bench", model_, "--no-peaks", "--disaggregate", "--no-plan"});
  EXPECT_EQ(bench.status, kUsage);
  EXPECT_THAT(bench.err, HasSubstr("give --layout, for instance"));
}

TEST_F(PlanOptionsTest, DisaggregateAloneAsksForAttentionOnTheFirstRankUntilThereIsAChoice) {
  PlanOptions options;
  options.disaggregate = true;
  const Result<plan::Plan> plan = ResolvePlan(options, model_, 3);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan::ToText(plan->layout), "attention=dp1,experts=ep2,disaggregate");
  EXPECT_EQ(plan->pipeline.micro_batches, 2);
}

TEST_F(PlanOptionsTest, DisaggregateBesideAPlanThatDoesSaysNothingNew) {
  const char* apart = R"({"version": 1, "layout": "attention=dp1,experts=ep2,disaggregate"})";
  const Result<plan::Plan> without = Beside(apart, "", 3);
  const Result<plan::Plan> with = Beside(apart, "--disaggregate", 3);
  ASSERT_TRUE(without && with) << with.error().message;
  EXPECT_EQ(*with, *without);
  PlanOptions options;
  options.path = Path("plan.json");
  options.disaggregate = true;
  EXPECT_TRUE(OptionsBesidePlan(options).empty());
  const Result<plan::Plan> other = Beside(kChunksOfExperts, "--disaggregate", 2);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message,
              AllOf(HasSubstr("attention=dp2,experts=ep2"), HasSubstr("give --layout as well")));
}

}  // namespace
}  // namespace convene::cli
