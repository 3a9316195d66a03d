#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::engine {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

// 1,000 tokens are 16 blocks of 64 MiB: 1 GiB of KV cache per sequence.
const MemoryRequest kRequest = {
    .weights_bytes = 10 * kGib,
    .kv_block_bytes = kGib / 16,
    .activation_bytes = kGib,
    .context = 1000,
    .max_sequences = 4,
    .available_bytes = 20 * kGib,
    .limited_by = "the free memory of this machine",
};

TEST(PlanMemory, GivesEverySequenceItsContextWhereThereIsRoom) {
  const Result<MemoryPlan> plan = PlanMemory(kRequest);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->num_kv_blocks, 64);
  EXPECT_EQ(plan->kv_bytes, 4 * kGib);
  EXPECT_GE(plan->needed_bytes(), 15 * kGib);
  EXPECT_LE(plan->needed_bytes(), 15 * kGib + kGib / 10);
}

TEST(PlanMemory, TakesFewerBlocksWhereOnlyThoseFit) {
  MemoryRequest request = kRequest;
  request.available_bytes = 13 * kGib;
  const Result<MemoryPlan> plan = PlanMemory(request);
  ASSERT_TRUE(plan);
  EXPECT_GE(plan->num_kv_blocks, 16);
  EXPECT_LT(plan->num_kv_blocks, 32);
  EXPECT_LE(plan->needed_bytes(), request.available_bytes);
}

TEST(PlanMemory, RefusesWhereNotEvenOneContextFits) {
  for (const uint64_t available_bytes : {uint64_t{0}, 5 * kGib, 11 * kGib, 12 * kGib}) {
    MemoryRequest request = kRequest;
    request.available_bytes = available_bytes;
    const Result<MemoryPlan> plan = PlanMemory(request);
    ASSERT_FALSE(plan) << available_bytes;
    EXPECT_THAT(plan.error().message, HasSubstr("needed 12.0 GiB"));
    EXPECT_THAT(plan.error().message, HasSubstr("weights 10.0 GiB"));
    EXPECT_THAT(plan.error().message, HasSubstr("the free memory of this machine"));
    EXPECT_THAT(plan.error().message, HasSubstr("--context"));
    EXPECT_EQ(plan.error().kind, ErrorKind::kResourceExhausted);
  }
}

TEST(PlanMemory, SurvivesAbsurdSizes) {
  MemoryRequest request = kRequest;
  request.context = 1 << 24;
  request.max_sequences = 1 << 16;
  EXPECT_FALSE(PlanMemory(request));
  request.kv_block_bytes = 1;
  request.available_bytes = UINT64_MAX;
  EXPECT_TRUE(PlanMemory(request));
}

}  // namespace
}  // namespace convene::engine
