#include "server/replanner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/eventually_test.h"

namespace convene::server {
namespace {

TEST(LoadShape, DiffersWhereOneFigureIsTwiceTheOther) {
  const LoadShape usual = {.prompt_tokens = 512, .gen_tokens = 64, .num_running = 32};
  EXPECT_FALSE(DifferMuch(usual, usual));
  EXPECT_FALSE(DifferMuch(usual, {.prompt_tokens = 600, .gen_tokens = 50, .num_running = 20}));
  EXPECT_TRUE(DifferMuch(usual, {.prompt_tokens = 1024, .gen_tokens = 64, .num_running = 32}));
  EXPECT_TRUE(DifferMuch(usual, {.prompt_tokens = 512, .gen_tokens = 32, .num_running = 32}));
  EXPECT_TRUE(DifferMuch({.prompt_tokens = 512, .gen_tokens = 64, .num_running = 1}, usual));
}

TEST(LoadShape, IsOfEnoughChoicesOnly) {
  EpochCounts counts;
  EXPECT_FALSE(counts.Shape());
  for (int i = 0; i < EpochCounts::kFewestChoices; ++i) {
    counts.AddPrompt(10 + i % 2 * 20);
    counts.AddStep(4, 4, 0);
  }
  EXPECT_FALSE(counts.Shape());  // none has ended
  counts.AddStep(4, 4, EpochCounts::kFewestChoices);
  const auto shape = counts.Shape();
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->prompt_tokens, 20);
  EXPECT_EQ(shape->num_running, 4);
  EXPECT_EQ(shape->gen_tokens,
            4.0 * (EpochCounts::kFewestChoices + 1) / EpochCounts::kFewestChoices);
}

class ReplannerTest : public testing::Test {
 protected:
  // An epoch of such requests.
  void Feed(int64_t prompt_tokens, int64_t gen_tokens) {
    for (int i = 0; i < EpochCounts::kFewestChoices; ++i) replanner_.AddPrompt(prompt_tokens);
    for (int64_t i = 0; i + 1 < gen_tokens; ++i) {
      replanner_.AddStep(16, EpochCounts::kFewestChoices, 0);
    }
    replanner_.AddStep(16, EpochCounts::kFewestChoices, EpochCounts::kFewestChoices);
  }
  std::optional<NewPlan> WaitForNew() {
    std::optional<NewPlan> found;
    Eventually([&] { return (found = replanner_.TakeNew()).has_value(); });
    return found;
  }

  std::atomic<int> num_asked_ = 0;
  std::atomic<int> num_stays_ = 0;
  std::atomic<double> asked_prompt_ = 0;
  Replanner replanner_{[this](const LoadShape& shape) -> Result<NewPlan> {
                         asked_prompt_ = shape.prompt_tokens;
                         ++num_asked_;
                         if (shape.prompt_tokens > 1000) return Error{"it is the best"};
                         return NewPlan{.words = "another"};
                       },
                       [this](const LoadShape& shape, const Error& why) {
                         EXPECT_GT(shape.prompt_tokens, 1000);
                         EXPECT_EQ(why.message, "it is the best");
                         ++num_stays_;
                       },
                       std::chrono::seconds(0),
                       {.prompt_tokens = 100, .gen_tokens = 10, .num_running = 16}};
};

TEST_F(ReplannerTest, AsksOnceWhereRequestsHaveBecomeOthers) {
  ASSERT_TRUE(replanner_.Start().ok());
  for (int i = 0; i < 5; ++i) Feed(110, 9);
  EXPECT_FALSE(replanner_.TakeNew());
  EXPECT_EQ(num_asked_, 0);
  Feed(300, 10);
  const auto found = WaitForNew();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->words, "another");
  EXPECT_EQ(asked_prompt_, 300);
  // It is the usual now.
  for (int i = 0; i < 5; ++i) Feed(310, 10);
  EXPECT_EQ(num_asked_, 1);
  Feed(100, 10);
  EXPECT_TRUE(WaitForNew());
  EXPECT_EQ(num_asked_, 2);
}

TEST_F(ReplannerTest, NoBetterPlanLeavesThePlanAndTheNextQuestion) {
  ASSERT_TRUE(replanner_.Start().ok());
  Feed(5000, 10);
  ASSERT_TRUE(Eventually([&] { return num_asked_ == 1; }));
  // Until the answer is in, an epoch may be passed over.
  int64_t prompt_tokens = 100;
  EXPECT_TRUE(Eventually([&] {
    if (num_asked_ == 2) return true;
    Feed(prompt_tokens, 10);
    prompt_tokens = 400 - prompt_tokens;  // 100 and 300 in turn
    return false;
  }));
  EXPECT_EQ(num_asked_, 2);
  EXPECT_TRUE(WaitForNew());
  EXPECT_EQ(num_stays_, 1);
}

TEST_F(ReplannerTest, EndsWithAQuestionOpen) {
  Feed(300, 10);  // nobody answers
  EXPECT_FALSE(replanner_.TakeNew());
}

}  // namespace
}  // namespace convene::server
