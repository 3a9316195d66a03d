// How many of the requests that are all there at once run together.
#include "planner/sequences_together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/asked_question_test.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

struct AskedOfRequests : Asked {
  explicit AskedOfRequests(int num_requests, const std::vector<int>& ranks = {1})
      : Asked(1e9, ranks) {
    workload = {.requests = {{64, 32}}, .batch = 4, .num_requests = num_requests};
    question.step_tokens = 256;
    question.memory_of = [this](const RankSetup&, const plan::Plan& plan,
                                int batch) -> Result<RankMemory> {
      const auto experts = static_cast<uint64_t>(plan.experts_in_memory.value_or(24 * 16));
      return RankMemory{.weights_bytes = 10 * experts,
                        .kv_bytes = kv_bytes * static_cast<uint64_t>(batch)};
    };
    question.memory_per_rank = [](int) { return uint64_t{10'000}; };
  }

  uint64_t kv_bytes = 1;
};

double SecondsWith(const BatchOfRequests& chosen, int batch) {
  const auto found = std::ranges::find(chosen.tried, batch, &TriedBatch::batch);
  return found == chosen.tried.end() ? -1 : found->seconds;
}

TEST(SequencesTogether, ManyShareWhatAStepReads) {
  AskedOfRequests asked(1000);
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_GE(chosen->batch, 64);
  EXPECT_LT(SecondsWith(*chosen, chosen->batch), SecondsWith(*chosen, 4) / 2);
  // The fewest that are about as good.
  double least = SecondsWith(*chosen, chosen->batch);
  for (const TriedBatch& one : chosen->tried) {
    least = std::min(least, one.seconds);
    if (one.batch < chosen->batch) {
      EXPECT_GT(one.seconds, SecondsWith(*chosen, chosen->batch));
    }
  }
  EXPECT_LE(SecondsWith(*chosen, chosen->batch), 1.03 * least);
  EXPECT_THAT(chosen->Describe(1000), HasSubstr(" of 1,000 requests run together; 4 would take "));
}

TEST(SequencesTogether, NoMoreThanThereAre) {
  AskedOfRequests asked(6);
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_EQ(chosen->tried.back().batch, 6);
  EXPECT_EQ(chosen->batch, 6) << "four and then two of them read the weights twice as often";
  asked.workload.num_requests = 3;
  EXPECT_EQ(ChooseBatch(asked.question)->batch, 3);
}

TEST(SequencesTogether, NoMoreThanAStepHasTokens) {
  AskedOfRequests asked(1000);
  asked.question.step_tokens = 24;
  EXPECT_EQ(ChooseBatch(asked.question)->tried.back().batch, 24);
  asked.question.step_tokens = 3;
  EXPECT_EQ(ChooseBatch(asked.question)->batch, 3);
  // Unless steps may grow.
  asked.question.constraints.keeps_step_tokens = false;
  EXPECT_GE(ChooseBatch(asked.question)->batch, 64);
}

TEST(SequencesTogether, EachGroupOfRanksHasAStepOfItsOwn) {
  AskedOfRequests asked(1000, {2});
  asked.question.constraints.layout = *plan::ParseLayout("attention=dp2,experts=ep2");
  asked.question.step_tokens = 24;
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_EQ(chosen->tried.back().batch, 48);
  EXPECT_GT(SecondsWith(*chosen, 48), 0);
}

TEST(SequencesTogether, NoMoreThanMemoryHas) {
  AskedOfRequests asked(1000);
  asked.kv_bytes = 120;  // 51 of them beside the weights
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_EQ(chosen->batch, 32);
  EXPECT_EQ(SecondsWith(*chosen, 64), 0);
  EXPECT_THAT(chosen->Describe(1000), HasSubstr("for 64 there is no memory"));
  // Not even for as many as usual.
  asked.kv_bytes = 4000;
  EXPECT_EQ(ChooseBatch(asked.question)->batch, 1);
}

// Experts give way to keys and values as long as that pays.
TEST(SequencesTogether, ExpertsMayGiveWayToKeysAndValues) {
  AskedOfRequests asked(1000);
  asked.kv_bytes = 120;
  asked.profile.machine.disk_gbps = 1000;
  asked.question.experts_that_fit = [&asked](const RankSetup&, const plan::Plan&, int batch,
                                             uint64_t bytes) -> Result<int> {
    const uint64_t kv = asked.kv_bytes * static_cast<uint64_t>(batch);
    if (bytes < kv + 160) return ResourceExhausted("too little for the batch");
    return static_cast<int>((bytes - kv) / 10);
  };
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_GT(chosen->batch, 51);
  EXPECT_LE(chosen->batch, (10'000 - 160) / 120);
}

// So may keys and values, of as many as are tried.
TEST(SequencesTogether, KeysAndValuesOnADiskAreThoseOfAsManyAsAreTried) {
  AskedOfRequests asked(1000);
  asked.kv_bytes = 120;
  asked.profile.machine.disk_gbps = 1000;
  asked.question.experts_that_fit = [](const RankSetup&, const plan::Plan&, int,
                                       uint64_t) -> Result<int> {
    return ResourceExhausted("too little for the batch");
  };
  std::set<int> tried;
  asked.question.spilled_that_fit = [&tried](const RankSetup&, const plan::Plan& plan, int batch,
                                             uint64_t, double) -> Result<plan::Plan> {
    tried.insert(batch);
    plan::Plan spilled = plan;
    spilled.sequences = batch;
    spilled.experts_in_memory = 16;
    spilled.spilled_kv =
        plan::SpilledKv{.blocks_in_memory = 1, .buffers = 2, .buffer_blocks = batch};
    return spilled;
  };
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_TRUE(tried.contains(256));
  EXPECT_FALSE(tried.contains(32)) << "they have room";
}

TEST(SequencesTogether, AreChosenForThroughputAlone) {
  AskedOfRequests asked(1000);
  asked.workload.objective = Objective::kTtft;
  const Result<BatchOfRequests> chosen = ChooseBatch(asked.question);
  ASSERT_FALSE(chosen);
  EXPECT_THAT(chosen.error().message, HasSubstr("1000 requests run together is chosen for their"));
}

}  // namespace
}  // namespace convene::planner
