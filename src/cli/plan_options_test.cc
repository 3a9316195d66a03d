#include "cli/plan_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace convene::cli
