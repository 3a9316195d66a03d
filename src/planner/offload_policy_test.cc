#include "planner/offload_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

// Machines and models at random, small enough that all policies can be tried; rates are such that
// each resource is the one that waits in some of them.
class RandomQuestion {
 public:
  explicit RandomQuestion(uint32_t seed) : random_(seed) {}

  OffloadQuestion Draw() {
    OffloadQuestion question;
    OffloadModel& model = question.model;
    model.num_layers = 1 + static_cast<int>(random_() % 4);
    model.hidden = Log(10, 100);
    model.most_expert_row = Log(10, 400);
    model.query_elements = model.num_layers * Log(5, 100);
    model.output_elements = model.query_elements;
    model.resident_elements = Log(100, 1e4);
    model.token_elements = model.resident_elements * Log(0.5, 1);
    model.token_flops = 2 * model.token_elements;
    const double experts = 1 + static_cast<double>(random_() % 8);
    model.streamed = {{.num_layers = model.num_layers,
                       .num_experts = experts,
                       .top_k = 1 + static_cast<double>(random_() % static_cast<int>(experts)),
                       .expert_elements = Log(1e3, 1e5)}};
    model.most_streamed_layer = experts * model.streamed[0].expert_elements;
    model.attention = {{.num_layers = model.num_layers,
                        .window = random_() % 2 == 0 ? 0 : Log(1, 200),
                        .score_flops = Log(20, 1e3),
                        .prompt_score_flops = Log(20, 1e3),
                        .cached_elements = Log(5, 200)}};
    const double weights = 2 * (model.StreamedElements() + model.resident_elements);
    question.fast = {.name = "fast",
                     .flops = Log(1e9, 1e12),
                     .bytes_per_second = Log(1e8, 1e11),
                     .bytes = weights * Log(0.3, 4)};
    question.slow = {.name = "slow",
                     .flops = random_() % 4 == 0 ? 0 : Log(1e8, 1e11),
                     .bytes_per_second = Log(1e7, 1e10),
                     .bytes = random_() % 4 == 0 ? 0 : weights * Log(0.5, 4),
                     .up_bytes_per_second = Log(1e6, 1e10)};
    question.down_bytes_per_second = random_() % 3 == 0 ? 0 : Log(1e6, 1e10);
    question.prompt_tokens = 1 + static_cast<double>(random_() % 100);
    question.gen_tokens = 1 + static_cast<double>(random_() % 50);
    question.formats = {{"bf16", 2, 2}, {"int4", 0.53, 1}};
    question.most_batch = 1 + static_cast<int>(random_() % 24);
    question.micro_batches = {1, 2, 3, 5, 8};
    question.resident_steps = 5;
    return question;
  }

 private:
  double Log(double low, double high) {
    return std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random_));
  }

  std::mt19937 random_;
};

// All of them, one after the other.
std::optional<OffloadAnswer::Way> BestByTrying(const OffloadQuestion& question) {
  std::optional<OffloadAnswer::Way> best;
  std::vector<int> micro_batches = question.micro_batches;
  if (micro_batches.empty()) {
    micro_batches.resize(static_cast<size_t>(question.most_batch));
    std::iota(micro_batches.begin(), micro_batches.end(), 1);
  }
  const auto try_it = [&](const OffloadPolicy& policy) {
    const OffloadFigures figures = FiguresOf(question, policy);
    if (!figures.fits) return;
    if (best && best->figures.tokens_per_second >= figures.tokens_per_second) return;
    best = {policy, figures};
  };
  const int steps = question.resident_steps;
  for (int format = 0; format < 2; ++format) {
    for (const bool attention : {false, true}) {
      for (const bool experts : {false, true}) {
        if ((attention || experts) && !question.slow_computes()) continue;
        for (const int micro_batch : micro_batches) {
          for (int batch = micro_batch; batch <= question.most_batch; batch += micro_batch) {
            for (int w = 0; w <= (experts ? 0 : steps); ++w) {
              for (int c = 0; c <= (attention ? 0 : steps); ++c) {
                try_it({.batch = batch,
                        .micro_batch = micro_batch,
                        .attention_on_host = attention,
                        .experts_on_host = experts,
                        .weights_resident = double(w) / steps,
                        .cache_resident = double(c) / steps,
                        .format = format});
              }
            }
          }
        }
      }
    }
  }
  return best;
}

TEST(OffloadPolicy, IsTheBestOfAllOnAThousandRandomQuestions) {
  RandomQuestion random(18);
  int num_answered = 0;
  int num_on_host = 0;
  int num_streamed = 0;
  int num_in_int4 = 0;
  for (int i = 0; i < 1000; ++i) {
    const OffloadQuestion question = random.Draw();
    const Result<OffloadAnswer> answer = SearchOffloadPolicy(question);
    const std::optional<OffloadAnswer::Way> best = BestByTrying(question);
    ASSERT_EQ(answer.ok(), best.has_value()) << i;
    if (!answer.ok()) continue;
    ++num_answered;
    num_on_host += answer->policy.attention_on_host || answer->policy.experts_on_host;
    num_streamed += answer->policy.weights_resident < 1;
    num_in_int4 += answer->policy.format == 1;
    EXPECT_TRUE(answer->figures.fits);
    EXPECT_NEAR(answer->figures.tokens_per_second / best->figures.tokens_per_second, 1, 1e-9) << i;
  }
  // The questions are no easy ones: all kinds of answer are among them.
  EXPECT_GT(num_answered, 600);
  EXPECT_GT(num_on_host, 100);
  EXPECT_GT(num_streamed, 50);
  EXPECT_LT(num_streamed, num_answered - 100);
  EXPECT_GT(num_in_int4, 100);
}

// Of hundreds of sequences most sizes of micro-batches leave some out, and the best is seldom a
// round number.
TEST(OffloadPolicy, IsTheBestOfAllMicroBatchesOfHundredsOfSequences) {
  RandomQuestion random(77);
  int num_answered = 0;
  int num_in_large = 0;  // micro-batches, and several of them
  for (int i = 0; i < 150; ++i) {
    OffloadQuestion question = random.Draw();
    question.most_batch = 100 + (i * 37) % 400;
    question.micro_batches.clear();
    question.prompt_tokens = 1 + i % 8;  // so that rows of more than a few sequences have room
    question.resident_steps = 2;
    const Result<OffloadAnswer> answer = SearchOffloadPolicy(question);
    const std::optional<OffloadAnswer::Way> best = BestByTrying(question);
    ASSERT_EQ(answer.ok(), best.has_value()) << i;
    if (!answer.ok()) continue;
    ++num_answered;
    num_in_large += answer->policy.micro_batch > 32 && answer->policy.num_micro_batches() > 1;
    EXPECT_TRUE(answer->figures.fits);
    EXPECT_NEAR(answer->figures.tokens_per_second / best->figures.tokens_per_second, 1, 1e-9) << i;
  }
  EXPECT_GT(num_answered, 100);
  EXPECT_GT(num_in_large, 10);
}

// 100 weights a layer of two layers, each visited by every token, and no cache to speak of.
OffloadQuestion Simple() {
  OffloadQuestion question;
  OffloadModel& model = question.model;
  model.num_layers = 2;
  model.hidden = 1;
  model.streamed = {{.num_layers = 2, .expert_elements = 100}};
  model.most_streamed_layer = 100;
  model.attention = {
      {.num_layers = 2, .score_flops = 1, .prompt_score_flops = 1, .cached_elements = 1}};
  question.fast = {.name = "RAM", .flops = 1e9, .bytes_per_second = 1e9, .bytes = 1e6};
  question.slow = {.name = "disk", .flops = 0, .up_bytes_per_second = 1e3};
  question.prompt_tokens = 10;
  question.gen_tokens = 11;
  question.most_batch = 4;
  return question;
}

TEST(OffloadPolicy, StreamedWeightsTakeTheLinksTime) {
  OffloadQuestion question = Simple();
  OffloadPolicy policy = {.batch = 4, .micro_batch = 2, .cache_resident = 1};
  const OffloadFigures streamed = FiguresOf(question, policy);
  EXPECT_NEAR(streamed.step.link_up, 2 * 100 * 2 / 1e3, 1e-9);
  EXPECT_EQ(streamed.step.bound(), OffloadBound::kLinkUp);
  EXPECT_NEAR(streamed.seconds, 11 * 0.4, 1e-9);  // prefill reads them once, too
  policy.weights_resident = 0.5;
  EXPECT_NEAR(FiguresOf(question, policy).step.link_up, 0.2, 1e-9);
  policy.weights_resident = 1;
  EXPECT_EQ(FiguresOf(question, policy).step.bound(), OffloadBound::kFast);
}

TEST(OffloadPolicy, WithMemoryForEverythingNothingIsStreamed) {
  const Result<OffloadAnswer> answer = SearchOffloadPolicy(Simple());
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->policy.batch, 4);
  EXPECT_EQ(answer->policy.weights_resident, 1);
  EXPECT_EQ(answer->policy.cache_resident, 1);
  ASSERT_EQ(answer->ways.size(), 1u);  // a disk computes nothing
  EXPECT_EQ(DescribeWay(Simple(), answer->policy),
            "bf16, attention in the fast tier, experts resident");
}

TEST(OffloadPolicy, SaysHowMuchMemoryWouldDo) {
  OffloadQuestion question = Simple();
  question.fast.bytes = 300;  // two layers of 200
  EXPECT_THAT(SearchOffloadPolicy(question).error().message, HasSubstr("RAM has 300 B"));
  question.fast.bytes = 1e6;
  question.slow.bytes = 1;
  question.fast_reserved_bytes = 1e6 - 600;  // of which weights and rows take 524
  EXPECT_THAT(SearchOffloadPolicy(question).error().message, HasSubstr("disk has 1 B"));
}

// A step that streams all weights for each micro-batch wants few of them: three of 333 have more
// sequences together than any that are multiples of a power of two.
TEST(OffloadPolicy, TakesMicroBatchesThatAreNoRoundNumber) {
  OffloadQuestion question = Simple();
  question.model.hidden = 10;
  question.fast.bytes_per_second = 1e3;
  question.most_batch = 1000;
  question.fast.bytes = 1e5;
  const Result<OffloadAnswer> answer = SearchOffloadPolicy(question);
  ASSERT_TRUE(answer.ok());
  const OffloadPolicy& policy = answer->policy;
  for (int size = 1; size <= question.most_batch; ++size) {
    OffloadQuestion given = question;
    given.micro_batches = {size};
    const Result<OffloadAnswer> other = SearchOffloadPolicy(given);
    if (!other.ok()) continue;
    EXPECT_LE(other->figures.tokens_per_second, answer->figures.tokens_per_second * (1 + 1e-9))
        << size << " instead of " << policy.micro_batch;
  }
}

TEST(OffloadPolicy, SaysThatTheFastTierIsTooSmallForAGivenMicroBatch) {
  OffloadQuestion question = Simple();
  question.most_batch = 1000;
  question.fast.bytes = 1e4;  // 1,000 rows of 10 tokens take more
  ASSERT_TRUE(SearchOffloadPolicy(question).ok());
  question.micro_batches = {1000};
  EXPECT_THAT(SearchOffloadPolicy(question).error().message,
              AllOf(HasSubstr("RAM has 9.77 KiB, and 1,000 sequences at a time need"),
                    HasSubstr("smaller micro-batches need less")));
}

}  // namespace
}  // namespace convene::planner
