#include "cli/batch_progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::cli {
namespace {

// Generates so many tokens of each.
void Generate(BatchCounts& counts, std::vector<RequestProgress>& requests, int num_tokens) {
  for (RequestProgress& request : requests) {
    for (int i = 0; i < num_tokens; ++i) counts.Generate(request);
  }
}

std::vector<RequestProgress> Begin(BatchCounts& counts, int num_requests, int64_t prompt_tokens,
                                   int64_t most_tokens) {
  std::vector<RequestProgress> requests(
      static_cast<size_t>(num_requests),
      {.prompt_tokens = prompt_tokens, .most_tokens = most_tokens});
  for (const RequestProgress& request : requests) counts.Begin(request);
  return requests;
}

TEST(BatchCounts, ForeseesNothingBeforeAnythingIsComputed) {
  BatchCounts counts(5, 5, 100, 10);
  EXPECT_LT(counts.seconds_left(), 0);
  EXPECT_EQ(counts.Describe(), "batch: 0 of 5 requests done, prompts: 0 of 500 tokens");
  counts.AddStep(1);
  EXPECT_EQ(counts.Describe(), "batch: 0 of 5 requests done, prompts: 0 of 500 tokens");
  EXPECT_EQ(BatchCounts(0, 0, 100, 10).Describe(), "batch: 0 of 0 requests done");
}

TEST(BatchCounts, SaysFirstHowFarPromptsAre) {
  BatchCounts counts(20, 20, 250, 10);
  std::vector<RequestProgress> requests = Begin(counts, 4, 1000, 10);
  // Four are known, and sixteen as usual.
  EXPECT_DOUBLE_EQ(counts.all_prompt_tokens(), 4 * 1000 + 16 * 250);
  counts.Compute(requests[0], 500);
  counts.AddStep(5);
  EXPECT_EQ(counts.Describe(),
            "batch: 0 of 20 requests done, prompts: 500 of 8,000 tokens, 1 min 15 s left for them");
  // It gives way, and is computed again.
  counts.Compute(requests[0], 200);
  counts.AddStep(2);
  counts.Compute(requests[0], 500);
  EXPECT_DOUBLE_EQ(counts.prompt_seconds_left(), 7500 * 5 / 500.0);
}

TEST(BatchCounts, ForeseesTheRestByItsTokensAtTheirRates) {
  BatchCounts counts(2, 2, 100, 50);
  std::vector<RequestProgress> requests = Begin(counts, 2, 100, 50);
  counts.Compute(requests[0], 100);
  counts.AddStep(1);  // 100 tokens/s of prompts
  counts.Generate(requests[0]);
  counts.AddStep(0.5);
  counts.Generate(requests[0]);
  counts.AddStep(0.5);  // 2 tokens/s of answers
  EXPECT_DOUBLE_EQ(counts.all_generated_tokens(), 100);
  EXPECT_DOUBLE_EQ(counts.seconds_left(), 1 + 98 / 2.0);
  EXPECT_EQ(counts.Describe(),
            "batch: 0 of 2 requests done, prompts: 100 of 200 tokens, 1.0 tokens/s, 50 s left");
  // A step of both is shared by its tokens.
  counts.Compute(requests[1], 99);
  counts.Generate(requests[0]);
  counts.AddStep(2);
  EXPECT_NEAR(counts.seconds_left(), 2.98 / 199 + 97 * 1.02 / 3, 1e-9);
}

TEST(BatchCounts, AnswersThatEndEarlyShortenWhatIsExpected) {
  BatchCounts counts(1000, 1000, 10, 200);
  std::vector<RequestProgress> requests = Begin(counts, 10, 10, 200);
  EXPECT_DOUBLE_EQ(counts.all_generated_tokens(), 1000 * 200);
  Generate(counts, requests, 50);
  counts.AddStep(60);
  for (size_t i = 0; i < 8; ++i) counts.End(requests[i]);
  EXPECT_DOUBLE_EQ(counts.all_generated_tokens(), 1000 * 50);
  // Where all that were begun are longer than that, they are at least as long as they are.
  BatchCounts few(3, 3, 10, 200);
  std::vector<RequestProgress> last = Begin(few, 3, 10, 200);
  Generate(few, last, 20);
  few.End(last[0]);
  last.erase(last.begin());
  Generate(few, last, 80);
  EXPECT_DOUBLE_EQ(few.all_generated_tokens(), 20 + 200);
}

TEST(BatchCounts, WhatIsRefusedIsDoneAndNoWork) {
  BatchCounts counts(4, 3, 100, 10);
  counts.EndUnbegun(/*was_waiting=*/true);
  EXPECT_DOUBLE_EQ(counts.all_prompt_tokens(), 200);
  std::vector<RequestProgress> requests = Begin(counts, 2, 100, 10);
  counts.Compute(requests[0], 40);
  counts.End(requests[0]);
  EXPECT_DOUBLE_EQ(counts.all_prompt_tokens(), 140);
  EXPECT_DOUBLE_EQ(counts.all_generated_tokens(), 10) << "it tells nothing of other answers";
  for (int i = 0; i < 10; ++i) counts.Generate(requests[1]);
  counts.AddStep(4);
  counts.End(requests[1]);
  counts.EndUnbegun(/*was_waiting=*/false);
  EXPECT_EQ(counts.Describe(), "batch: 4 of 4 requests done, 2.5 tokens/s, 0 s left");
}

TEST(BatchCounts, LongTimesAreInHours) {
  BatchCounts counts(10000, 10000, 1, 64);
  std::vector<RequestProgress> requests = Begin(counts, 1, 1, 64);
  counts.Compute(requests[0], 1);
  counts.AddStep(0);
  Generate(counts, requests, 64);
  counts.AddStep(2);
  counts.End(requests[0]);
  EXPECT_EQ(counts.Describe(), "batch: 1 of 10,000 requests done, 32.0 tokens/s, 5 h 33 min left");
}

}  // namespace
}  // namespace convene::cli
