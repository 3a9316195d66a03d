#include "engine/batch_work.h"

#include <gtest/gtest.h>

namespace convene::engine {
namespace {

TEST(BatchWork, CountsTheBlocksOfASequence) {
  // 205 tokens fill three blocks and a part of the fourth, and are such on average.
  BatchWork work{.num_requests = 100, .prompt_tokens = 77, .gen_tokens = 128, .longest = 300};
  EXPECT_EQ(BlocksOfSequence(work), 5);
  work.longest = 205;
  EXPECT_EQ(BlocksOfSequence(work), 4) << "two when it is let in, and one that is free then";
  work = {.num_requests = 100, .prompt_tokens = 200, .gen_tokens = 5, .longest = 205};
  EXPECT_EQ(BlocksOfSequence(work), 5) << "four when it is let in";
}

TEST(BatchWork, CountsTheStepsThatABatchTakes) {
  BatchWork work{.num_requests = 100, .prompt_tokens = 50, .gen_tokens = 10};
  EXPECT_EQ(BlocksOfSequence(work), 2);
  // All at once: 5,000 tokens of prompts, then a token of each.
  EXPECT_DOUBLE_EQ(StepsOf(work, 100, 500), 10 + 10);
  EXPECT_DOUBLE_EQ(StepsOf(work, 1000, 500), 10 + 10) << "no more than there are";
  // Ten at a time: each of ten rounds generates for ten steps.
  EXPECT_DOUBLE_EQ(StepsOf(work, 10, 500), 100 + 1);
  // The last ten take as long as 90 do.
  EXPECT_DOUBLE_EQ(StepsOf(work, 90, 500), 20 + 9);
  // Steps that are full of tokens.
  EXPECT_DOUBLE_EQ(StepsOf(work, 10, 10), 100 * 59 / 10.0);
  work = {};
  EXPECT_DOUBLE_EQ(StepsOf(work, 1, 1), 2);
}

}  // namespace
}  // namespace convene::engine
