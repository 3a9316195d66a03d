#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::engine {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

// 1,000 tokens are 16 blocks of 64 MiB: 1 GiB of KV cache per sequence.
MemoryNeeds Needs() {
  MemoryNeeds needs{.kv_block_bytes = kGib / 16, .context = 1000, .max_sequences = 4};
  needs.fixed[memory::Use::kWeights] = 10 * kGib;
  needs.fixed[memory::Use::kWorking] = kGib;
  return needs;
}

memory::Tier Host(uint64_t budget_bytes) {
  return {.budget_bytes = budget_bytes, .limited_by = "the free memory of this machine"};
}

TEST(PlanMemory, GivesEverySequenceItsContextWhereThereIsRoom) {
  memory::Ledger ledger(Host(20 * kGib));
  const Result<MemoryPlan> plan = PlanMemory(Needs(), ledger);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->num_kv_blocks, 64);
  EXPECT_EQ(plan->kv_bytes(), 4 * kGib);
  EXPECT_EQ(plan->needed_bytes(), 15 * kGib + kProgramBytes);
  EXPECT_EQ(plan->working_bytes(), kGib + kProgramBytes);
  EXPECT_EQ(plan->Describe(),
            "needed 15.0 GiB (weights 10.0 GiB, KV cache 4.00 GiB, working memory 1.03 GiB), "
            "available 20.0 GiB");
  EXPECT_EQ(ledger.reserved(), memory::Amounts()) << "a plan keeps nothing";
}

TEST(PlanMemory, NamesExchangeBuffersWhereThereAreAny) {
  memory::Ledger ledger(Host(20 * kGib));
  MemoryNeeds needs = Needs();
  needs.fixed[memory::Use::kExchange] = kGib / 2;
  const Result<MemoryPlan> plan = PlanMemory(needs, ledger);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->Describe(), HasSubstr("working memory 1.03 GiB, exchange buffers 512 MiB)"));
  EXPECT_EQ(plan->working_bytes(), kGib + kGib / 2 + kProgramBytes);
}

TEST(PlanMemory, TakesFewerBlocksWhereOnlyThoseFit) {
  memory::Ledger ledger(Host(13 * kGib));
  Result<MemoryPlan> plan = PlanMemory(Needs(), ledger);
  ASSERT_TRUE(plan);
  EXPECT_GE(plan->num_kv_blocks, 16);
  EXPECT_LT(plan->num_kv_blocks, 32);
  EXPECT_LE(plan->needed_bytes(), plan->available_bytes);
  EXPECT_GT(plan->needed_bytes() + kGib / 16, plan->available_bytes) << "one more would not fit";

  // Another rank has room for 20.
  plan->SetKvBlocks(20);
  EXPECT_EQ(plan->num_kv_blocks, 20);
  EXPECT_EQ(plan->kv_bytes(), 20 * kGib / 16);
}

TEST(PlanMemory, CountsWhatOthersHaveReserved) {
  memory::Ledger ledger(Host(20 * kGib));
  const auto other = ledger.Reserve(memory::Use::kStaging, 7 * kGib);
  const Result<MemoryPlan> plan = PlanMemory(Needs(), ledger);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->available_bytes, 13 * kGib);
  EXPECT_LT(plan->num_kv_blocks, 32);
}

TEST(PlanMemory, NamesTheNodeWhoseMemoryIsTooLittle) {
  memory::Tier tier = Host(5 * kGib);
  tier.numa_node = 1;
  memory::Ledger ledger(tier);
  EXPECT_THAT(PlanMemory(Needs(), ledger).error().message,
              ::testing::StartsWith("not enough memory of NUMA node 1: needed 12.0 GiB"));
}

TEST(PlanMemory, RefusesWhereNotEvenOneContextFits) {
  for (const uint64_t available_bytes : {uint64_t{0}, 5 * kGib, 11 * kGib, 12 * kGib}) {
    memory::Ledger ledger(Host(available_bytes));
    const Result<MemoryPlan> plan = PlanMemory(Needs(), ledger);
    ASSERT_FALSE(plan) << available_bytes;
    EXPECT_THAT(plan.error().message, HasSubstr("needed 12.0 GiB"));
    EXPECT_THAT(plan.error().message, HasSubstr("weights 10.0 GiB"));
    EXPECT_THAT(plan.error().message, HasSubstr("the free memory of this machine"));
    EXPECT_THAT(plan.error().message, HasSubstr("--context"));
    EXPECT_EQ(plan.error().kind, ErrorKind::kResourceExhausted);
    EXPECT_EQ(ledger.reserved(), memory::Amounts());
  }
}

TEST(PlanMemory, SurvivesAbsurdSizes) {
  MemoryNeeds needs = Needs();
  needs.context = 1 << 24;
  needs.max_sequences = 1 << 16;
  memory::Ledger small(Host(20 * kGib));
  EXPECT_FALSE(PlanMemory(needs, small));
  needs.kv_block_bytes = 1;
  memory::Ledger unlimited;
  EXPECT_TRUE(PlanMemory(needs, unlimited));
}

}  // namespace
}  // namespace convene::engine
