#include "cli/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/plan_options.h"
#include "cli/planned_question.h"
#include "planner/invented_costs_test.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A report of one plan for batches of 16 in steps of 512 tokens.
struct Reported {
  explicit Reported(plan::Plan plan) {
    planner::Candidate& chosen = answer.candidates.emplace_back();
    chosen.setup = {plan.layout.num_ranks(), 2, "bf16"};
    chosen.plan = std::move(plan);
    answer.chosen = 0;
  }

  model::ModelSpec spec = planner::InventedSpec(2);
  planner::Workload workload = {.requests = {{512, 64}}, .batch = 16};
  cost::MachineProfile costs;
  planner::MeasuredSource source{costs};
  planner::PlanQuestion question{.spec = spec, .workload = workload, .source = source};
  planner::PlanAnswer answer;
  planner::Explanation explanation;
  nlohmann::json config;
  std::optional<Verification> verification;
  PlanReport report{.question = question,
                    .answer = answer,
                    .explanation = explanation,
                    .model = "a model",
                    .model_hash = "0123456789abcdef",
                    .profile = "",
                    .plan_path = "",
                    .costs = costs,
                    .config = config,
                    .verification = verification};
};

plan::Plan PlanOf(const std::string& layout, strategy::Pipeline pipeline = {}) {
  return {.layout = *plan::ParseLayout(layout),
          .pipeline = std::move(pipeline),
          .wire = plan::Wire::kF32};
}

// What the options of a command mean, as the commands that run models read them.
plan::Plan ReadBack(const std::string& command, int num_ranks) {
  std::istringstream words(command.substr(command.find("--layout")));
  std::vector<std::string> given;
  for (std::string word; words >> word && word != "--max-batch";) given.push_back(word);
  std::reverse(given.begin(), given.end());
  CLI::App app;
  PlanOptions options;
  AddPlanOptions(app, options);
  app.parse(given);
  const Result<plan::Plan> plan = ResolvePlan(options, "", num_ranks);
  EXPECT_TRUE(plan.ok()) << (plan ? "" : plan.error().message) << " " << command;
  return plan ? *plan : plan::Plan{};
}

TEST(PlanCommand, RunsThePlanThatWasPriced) {
  using strategy::AttentionOrder;
  using strategy::ChunkCut;
  std::vector<plan::Plan> plans = {
      PlanOf("attention=dp4,experts=ep4"),
      PlanOf("attention=tp2dp2,experts=ep3:1:1:1", {.chunks = 4, .cut = ChunkCut::kExperts}),
      PlanOf("attention=dp4,experts=ep4", {.chunks = 2, .micro_batches = 2}),
      PlanOf("attention=dp4,experts=ep4", {.overlap = false}),
      PlanOf("attention=dp1,experts=ep3,disaggregate", {.dispatch_after_shared = true}),
      PlanOf("attention=dp1,experts=ep3,disaggregate",
             {.micro_batches = 3, .dispatch_after_shared = true}),
      PlanOf("attention=dp1,experts=ep3,disaggregate",
             {.chunks = 2, .micro_batches = 2, .order = AttentionOrder::kAass}),
      PlanOf("attention=dp1,experts=ep3,disaggregate", {.chunks = 2})};
  plan::Plan hybrid = PlanOf("attention=dp4,experts=ep4");
  hybrid.decode = *plan::ParseLayout("attention=dp4,experts=tp4");
  hybrid.phase_change = {.epoch_steps = 12, .transition = plan::Transition::kInt4};
  plans.push_back(hybrid);
  plans.push_back(PlanOf("attention=dp4,experts=ep4",
                         {.chunks = 4, .cut = ChunkCut::kExperts, .overlap = false}));
  for (const plan::Plan& plan : plans) {
    const Reported reported(plan);
    const std::string command = CommandOf(reported.report);
    EXPECT_EQ(ReadBack(command, 4), plan) << command;
  }
}

TEST(PlanCommand, SaysWhatStepsWerePricedWith) {
  Reported reported(PlanOf("attention=dp2,experts=ep2"));
  EXPECT_THAT(CommandOf(reported.report), HasSubstr("--max-batch 16 --input"));
  reported.question.step_tokens = 2048;
  EXPECT_THAT(CommandOf(reported.report), HasSubstr("--max-batch 16 --chunk 2048 "));
  // The file of the plan says both.
  reported.report.plan_path = "p.json";
  EXPECT_THAT(CommandOf(reported.report), HasSubstr("--plan p.json --input"));
  reported.workload.arrival_rate = 1;
  EXPECT_THAT(CommandOf(reported.report), HasSubstr("--plan p.json --max-batch 16 --chunk 2048 "));
  reported.workload.arrival_rate = 0;
  reported.report.plan_path = "";
  // A step has a token of each of those that run together, of which each of two ranks has a half.
  reported.question.step_tokens = 512;
  reported.workload.batch = 1024;
  EXPECT_THAT(CommandOf(reported.report), HasSubstr("--max-batch 1024 --input"));
  reported.workload.batch = 1200;
  EXPECT_THAT(CommandOf(reported.report), HasSubstr("--max-batch 1200 --chunk 600 "));
}

TEST(PlanCommand, SaysWhichDivisionsStayAndWhatPromptsDo) {
  plan::Plan both = PlanOf("attention=dp2,experts=ep2");
  both.decode = *plan::ParseLayout("attention=dp2,experts=tp2");
  both.phase_change.keeps_both = true;
  both.phase_change.epoch_steps = 8;
  both.phase_change.prompts_join = true;
  EXPECT_THAT(CommandOf(Reported(both).report),
              HasSubstr("--decode-experts tp2 --epoch-steps 8 --keep both --prompts join"));
}

TEST(PlanCommand, OfWhatOnlyAFileSaysAsksForAFile) {
  plan::Plan solved = PlanOf("attention=dp1,experts=ep1,disaggregate");
  solved.lines.emplace_back();
  const plan::Plan cut = PlanOf("attention=dp2,experts=ep2",
                                {.chunks = 2, .cut = strategy::ChunkCut::kExperts, .cuts = {0.2}});
  plan::Plan whole_decode = PlanOf("attention=dp2,experts=ep2", {.micro_batches = 2});
  whole_decode.cut_from_tokens = 64;
  for (const plan::Plan& plan : {solved, cut, whole_decode}) {
    Reported reported(plan);
    EXPECT_THAT(CommandOf(reported.report), IsEmpty());
    EXPECT_THAT(HowToRun(reported.report), HasSubstr("--out FILE"));
    reported.report.plan_path = "p.json";
    EXPECT_THAT(CommandOf(reported.report), HasSubstr("--plan p.json"));
    EXPECT_EQ(HowToRun(reported.report), CommandOf(reported.report));
  }
}

// So that a search knows the plan that runs now.
TEST(PlanFile, IsTheCandidateThatItWas) {
  plan::Plan larger = PlanOf("attention=dp2,experts=ep2");
  larger.step_tokens = 2048;
  for (const plan::Plan& plan : {PlanOf("attention=dp2,experts=ep2"), larger}) {
    for (const int batch : {1, 16, 2001}) {
      Reported reported(plan);
      reported.question.memory_per_rank = [](int) { return uint64_t{1} << 40; };
      reported.answer.candidates.front().figures = planner::PlanFigures{.batch = batch};
      const Result<plan::Plan> read = plan::PlanFromJson(PlanFile(reported.report));
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->sequences, batch);
      EXPECT_GE(read->step_tokens_or(512), (batch + 1) / 2);
      EXPECT_EQ(DecisionsOf(*read, 512), plan) << batch;
    }
  }
}

TEST(PlanCommand, WordsAreQuotedForAShell) {
  EXPECT_EQ(ShellWord("models/demo-1.0"), "models/demo-1.0");
  EXPECT_EQ(ShellWord("a b"), "'a b'");
  EXPECT_EQ(ShellWord("a<b"), "'a<b'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord(""), "''");
  EXPECT_THAT(CommandOf(Reported(PlanOf("attention=dp2,experts=ep2")).report),
              HasSubstr("batch 'a model' --weights"));
}

}  // namespace
}  // namespace convene::cli
