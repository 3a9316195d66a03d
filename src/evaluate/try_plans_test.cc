#include "evaluate/try_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/solo/solo_group.h"
#include "evaluate/trial_steps.h"
#include "planner/invented_costs_test.h"

namespace convene::evaluate {
namespace {

using ::testing::HasSubstr;

using Scores = std::vector<std::vector<double>>;

TEST(TryPlansTest, OnlyWhatIsBeyondTheNoiseOfOnePlanCorrectsTheChoice) {
  // All runs of plan 1 are shorter, by more than two runs of any plan differ.
  const Judgement clear = Judge(Scores{{10, 10.2, 10, 10.1}, {8, 8.1, 8, 8}, {9, 9.3}});
  EXPECT_EQ(clear.best, 1);
  EXPECT_TRUE(clear.is_certain);
  // They do not touch, but runs of plan 2 differ by more than the gain.
  const Judgement noisy = Judge(Scores{{10, 10.2, 10, 10}, {9.5, 9.6, 9.5, 9.6}, {10, 13}});
  EXPECT_EQ(noisy.best, 1);
  EXPECT_FALSE(noisy.is_certain);
  EXPECT_NEAR(noisy.noise, 0.3, 1e-9);
  // They overlap.
  EXPECT_FALSE(Judge(Scores{{10, 12, 10, 12}, {8, 10.5, 8, 10.5}}).is_certain);
  // One turn there and back may have been disturbed as a whole.
  EXPECT_FALSE(Judge(Scores{{10, 10}, {5, 5}}).is_certain);
}

TEST(TryPlansTest, ThePlanThatIsTheBestIsConfirmed) {
  const Judgement same = Judge(Scores{{10, 10.2}, {11, 11.5}});
  EXPECT_EQ(same.best, 0);
  EXPECT_TRUE(same.is_certain);
  EXPECT_TRUE(Judge(Scores{{10, 10.1}}).is_certain);
}

TEST(TryPlansTest, PlansThatDidNotRunDecideNothing) {
  EXPECT_EQ(Judge(Scores{{}, {}}).best, -1);
  EXPECT_FALSE(Judge(Scores{{}, {}}).is_certain);
  const Judgement without_first = Judge(Scores{{}, {5, 5}});
  EXPECT_EQ(without_first.best, 1);
  EXPECT_FALSE(without_first.is_certain);
}

TEST(TryPlansTest, QuestionsTravelWhole) {
  TrialQuestion question{.prompt_tokens = 26,
                         .context = 40,
                         .step_tokens = 64,
                         .expand_from_tokens = 9,
                         .seconds = 2.5};
  question.plans = {{.layout = {.attention_dp = 2, .expert_ep = 2},
                     .pipeline = {.chunks = 4},
                     .weights = "int8",
                     .num_threads = 1}};
  question.sequences = {{12, 3}, {40, 5}};
  question.router = {.skew = 0.5, .num_experts = 3};
  question.memory_budgets = {1 << 20, 2 << 20};
  const TrialQuestion read = TrialQuestionFromJson(ToJson(question));
  EXPECT_EQ(read.plans, question.plans);
  EXPECT_EQ(read.sequences, question.sequences);
  EXPECT_EQ(read.router.skew, question.router.skew);
  EXPECT_EQ(read.memory_budgets, question.memory_budgets);
  EXPECT_EQ(ToJson(read), ToJson(question));
}

constexpr const char* kSmallModel = CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain";
constexpr const char* kSmallEncoderDecoder = CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain";

// Plans in bf16 on one rank.
TrialQuestion QuestionOfOneRank(const std::vector<plan::Plan>& plans) {
  TrialQuestion question{.plans = plans, .sequences = {{8, 2}}, .context = 8, .seconds = 0.01};
  for (plan::Plan& plan : question.plans) {
    plan.weights = "bf16";
    plan.num_threads = 1;
  }
  return question;
}

Trials Tried(const TrialQuestion& question, const char* model = kSmallModel) {
  const Result<Trials> trials = TryPlans(*comm::MakeSoloGroup(), model, question);
  CHECK(trials.ok(), "{}", trials.error().message);
  return *trials;
}

// They would run with everything in memory, and be measured as what they are not.
TEST(TryPlansTest, WhatLiesOnADiskIsNotTriedInMemory) {
  plan::Plan paged;
  paged.experts_in_memory = 2;
  plan::Plan spilled = paged;
  spilled.spilled_kv = plan::SpilledKv{};
  const Trials trials = Tried(QuestionOfOneRank({{}, paged, spilled}));
  EXPECT_EQ(trials.plans[0].why_not, "");
  EXPECT_GE(trials.plans[0].runs.size(), 2u);
  EXPECT_THAT(trials.plans[1].why_not, HasSubstr("experts on a disk are not tried"));
  EXPECT_THAT(trials.plans[2].why_not, HasSubstr("keys and values on a disk are not tried"));
  for (const size_t plan : {1, 2}) EXPECT_TRUE(trials.plans[plan].runs.empty());
}

TEST(TryPlansTest, TrialsKeepWithinTheBudget) {
  TrialQuestion question = QuestionOfOneRank({{}});
  question.memory_budgets = {1};  // the program itself has more
  const Result<Trials> trials = TryPlans(*comm::MakeSoloGroup(), kSmallModel, question);
  if (trials) {
    EXPECT_THAT(trials->plans[0].why_not, HasSubstr("--memory-budget"));
  } else {
    EXPECT_THAT(trials.error().message, HasSubstr("--memory-budget"));
  }
  question.memory_budgets = {uint64_t{1} << 40};
  EXPECT_EQ(Tried(question).plans[0].why_not, "");
}

TEST(TryPlansTest, TokensGoWhereTheWorkloadSendsThem) {
  TrialQuestion question = QuestionOfOneRank({{}});
  question.sequences = {{64, 2}};
  const auto visited_of = [](const Trials& trials) {
    double most = 0;
    for (const auto& [size, value] : trials.plans[0].runs[0].steps[0].sizes) {
      if (size.kind == schedule::SizeKind::kExperts) most = std::max(most, value);
    }
    return most;
  };
  const double all = visited_of(Tried(question));
  question.router = {.skew = 1, .num_experts = 2};
  const double few = visited_of(Tried(question));
  EXPECT_EQ(few, 2);
  EXPECT_GT(all, few);
}

// Whole inputs before each step that begins their answers, and in decode the inputs of all: what
// the prices are of.
TEST(TryPlansTest, StepsOfAnEncoderDecoderAreThoseThatArePriced) {
  const model::ModelSpec spec = planner::InventedEncoderDecoder(2);
  TrialQuestion question{.prompt_tokens = 110, .context = 130, .step_tokens = 256};
  question.sequences = {{200, 41}, {90, 41}, {100, 41}, {50, 41}};
  const plan::Plan plan{.layout = {.attention_dp = 2, .expert_ep = 2}};
  const std::vector<StepToRun> steps = StepsOf(question, plan, spec);
  ASSERT_GE(steps.size(), 2u);
  double tokens = 0;
  double answers = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const StepToRun& step = steps[i];
    EXPECT_EQ(step.phase(), strategy::Phase::kPrefill);
    ASSERT_EQ(step.inputs().size(), step.step().size());
    for (size_t each = 0; each < step.inputs().size(); ++each) {
      const device::EncoderInput& input = step.inputs()[each];
      const device::SequenceStep& sequence = step.step()[each];
      EXPECT_EQ(sequence.first_position, 0);
      EXPECT_EQ(sequence.tokens.size(), 1u);
      EXPECT_EQ(sequence.first_logits_token, 0);
      EXPECT_EQ(sequence.group, input.group);
      EXPECT_EQ(sequence.encoder_length, std::ssize(input.tokens));
      EXPECT_TRUE(std::ranges::equal(sequence.encoder_blocks, input.blocks));
      tokens += step.count() * static_cast<double>(input.tokens.size());
      answers += step.count();
    }
  }
  EXPECT_NEAR(tokens, 200 + 90 + 100 + 50, 1e-9);
  EXPECT_NEAR(answers, 4, 1e-9);
  const StepToRun& decode = steps.back();
  EXPECT_EQ(decode.phase(), strategy::Phase::kDecode);
  EXPECT_TRUE(decode.inputs().empty());
  ASSERT_EQ(decode.step().size(), 4u);
  for (const device::SequenceStep& sequence : decode.step()) {
    EXPECT_EQ(sequence.first_position, 20);
    EXPECT_EQ(sequence.encoder_length, 110);
  }
}

// Each block holds one thing: what a sequence's own tokens write is not what it attends to.
TEST(TryPlansTest, InputsAndAnswersHaveBlocksOfTheirOwn) {
  TrialQuestion question{.prompt_tokens = 100, .context = 300, .step_tokens = 512};
  question.sequences = std::vector<planner::RequestLengths>(5, {100, 400});
  const plan::Plan plan{.layout = {.attention_dp = 2, .expert_ep = 2}};
  for (const StepToRun& step : StepsOf(question, plan, planner::InventedEncoderDecoder(2))) {
    for (const int group : {0, 1}) {
      std::vector<int32_t> blocks;
      for (const device::SequenceStep& each : step.step()) {
        if (each.group != group) continue;
        EXPECT_EQ(each.encoder_blocks.size(), 2u);
        EXPECT_EQ(std::ssize(each.blocks), each.first_position / device::kKvBlockTokens + 1);
        blocks.insert(blocks.end(), each.encoder_blocks.begin(), each.encoder_blocks.end());
        blocks.insert(blocks.end(), each.blocks.begin(), each.blocks.end());
      }
      std::ranges::sort(blocks);
      EXPECT_TRUE(std::ranges::adjacent_find(blocks) == blocks.end());
      ASSERT_FALSE(blocks.empty());
      EXPECT_LT(blocks.back(), step.num_blocks());
    }
  }
}

// One step of each is kept, with what it attended to: costs learn from the encoder's, too.
TEST(TryPlansTest, AnEncoderDecoderIsTriedWithItsEncoder) {
  TrialQuestion question = QuestionOfOneRank({{}});
  question.sequences = {{70, 9}, {70, 9}};
  question.prompt_tokens = 70;
  question.context = 74;
  const Trials trials = Tried(question, kSmallEncoderDecoder);
  ASSERT_EQ(trials.plans[0].why_not, "");
  ASSERT_GE(trials.plans[0].runs.size(), 2u);
  const auto most = [](const runtime::RecordedStep& step, schedule::SizeKind kind) {
    double found = 0;
    for (const auto& [size, value] : step.sizes) {
      if (size.kind == kind) found = std::max(found, value);
    }
    return found;
  };
  for (const TrialRun& run : trials.plans[0].runs) {
    EXPECT_GT(run.prefill_seconds, 0);
    EXPECT_GT(run.decode_seconds, 0);
    ASSERT_EQ(run.steps.size(), 3u);
    EXPECT_TRUE(run.steps[0].encoder);
    EXPECT_EQ(run.steps[0].num_tokens, 140);
    for (const size_t step : {1, 2}) {
      EXPECT_FALSE(run.steps[step].encoder);
      EXPECT_EQ(run.steps[step].num_tokens, 2);
      EXPECT_EQ(most(run.steps[step], schedule::SizeKind::kInputCached), 140);
    }
    EXPECT_EQ(most(run.steps[1], schedule::SizeKind::kKeys), 2);
    EXPECT_EQ(most(run.steps[2], schedule::SizeKind::kKeys), 2 * (4 + 1));
  }
}

}  // namespace
}  // namespace convene::evaluate
