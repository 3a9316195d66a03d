#include "engine/step_sampling.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace convene::engine {
namespace {

ActiveRequest RequestOf(const SamplingOptions& sampling, std::optional<int> num_logprobs = {}) {
  Request request;
  request.prompt = {1, 2};
  request.sampling = sampling;
  request.num_logprobs = num_logprobs;
  return ActiveRequest(/*id=*/1, std::move(request), /*max_length=*/10, /*tokenizer=*/nullptr,
                       /*start_token=*/{});
}

TEST(StepSampling, TakesTheTokenThatADeviceFound) {
  ActiveRequest found = RequestOf({.temperature = 0});
  ActiveRequest not_finite = RequestOf({.temperature = 0});
  ActiveRequest of_logits = RequestOf({.temperature = 0});
  const std::vector<float> logits = {0, 3, 1};
  StepSampling sampling;
  sampling.Add(found, runtime::Logits(2), /*stays=*/true);
  sampling.Add(not_finite, runtime::Logits(-1), /*stays=*/true);
  sampling.Add(of_logits, runtime::Logits(logits), /*stays=*/true);
  hardware::ThreadPool pool({0});
  const std::vector<StepSampling::Sampled> sampled = sampling.Take(pool);
  ASSERT_EQ(sampled.size(), 3);
  EXPECT_EQ(sampled[0].request, &found);
  ASSERT_TRUE(sampled[0].token);
  EXPECT_EQ(sampled[0].token->token, 2);
  EXPECT_FALSE(sampled[1].token);
  ASSERT_TRUE(sampled[2].token);
  EXPECT_EQ(sampled[2].token->token, 1);
}

TEST(ActiveRequest, TakesTheLargestUnlessItIsToTellOfLogprobs) {
  EXPECT_TRUE(RequestOf({.temperature = 0}).TakesLargest());
  EXPECT_FALSE(RequestOf({.temperature = 0}, /*num_logprobs=*/0).TakesLargest());
  EXPECT_FALSE(RequestOf({.temperature = 1}).TakesLargest());
}

}  // namespace
}  // namespace convene::engine
