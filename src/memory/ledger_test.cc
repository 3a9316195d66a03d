#include "memory/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "hardware/affinity.h"
#include "hardware/numa.h"

namespace convene::memory {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;

Tier Host(uint64_t budget_bytes) {
  return {.budget_bytes = budget_bytes, .limited_by = "the test's wish"};
}

TEST(Ledger, AddsUpByUseAndGetsBackWhatIsDestroyed) {
  Ledger ledger(Host(10 * kMib));
  const Result<Reservation> weights = ledger.Reserve(Use::kWeights, 4 * kMib);
  ASSERT_TRUE(weights);
  EXPECT_EQ(weights->size_bytes(), 4 * kMib);
  {
    const Result<Reservation> first = ledger.Reserve(Use::kStaging, kMib);
    const Result<Reservation> second = ledger.Reserve(Use::kStaging, 2 * kMib);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(ledger.reserved()[Use::kStaging], 3 * kMib);
    EXPECT_EQ(ledger.reserved().total(), 7 * kMib);
    EXPECT_EQ(ledger.available_bytes(), 3 * kMib);
  }
  Amounts expected;
  expected[Use::kWeights] = 4 * kMib;
  EXPECT_EQ(ledger.reserved(), expected);
  EXPECT_EQ(ledger.available_bytes(), 6 * kMib);
}

TEST(Ledger, RefusesWhatDoesNotFitAndSaysWhy) {
  Ledger ledger(Host(10 * kMib));
  const Result<Reservation> weights = ledger.Reserve(Use::kWeights, 4 * kMib);
  const Result<Reservation> refused = ledger.Reserve(Use::kKvCache, 6 * kMib + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_EQ(refused.error().message,
            "not enough memory for the KV cache: needed 6.00 MiB, available 6.00 MiB (the test's "
            "wish)");
  EXPECT_FALSE(ledger.Reserve(Use::kKvCache, UINT64_MAX));
  EXPECT_EQ(ledger.reserved().total(), 4 * kMib) << "what is refused takes nothing";
  EXPECT_TRUE(ledger.Reserve(Use::kKvCache, 6 * kMib));
  const Result<Reservation> rest = ledger.Reserve(Use::kKvCache, 6 * kMib);
  ASSERT_TRUE(rest) << "the one before was given back at once";
  EXPECT_TRUE(ledger.Reserve(Use::kStaging, 0));
  EXPECT_FALSE(ledger.Reserve(Use::kStaging, 1));
}

TEST(Ledger, WithoutALimitTakesEverythingOnce) {
  Ledger ledger;
  const Result<Reservation> all = ledger.Reserve(Use::kKvCache, UINT64_MAX);
  ASSERT_TRUE(all);
  EXPECT_FALSE(ledger.Reserve(Use::kKvCache, 1));
}

TEST(Ledger, NamesItsTier) {
  EXPECT_EQ(Tier().name(), "memory");
  EXPECT_EQ(Tier{.numa_node = 1}.name(), "memory of NUMA node 1");
  EXPECT_EQ((Tier{.numa_node = 1, .spills = true}.name()), "memory (NUMA node 1 first)");
  Ledger device({.kind = TierKind::kDevice, .budget_bytes = 1, .limited_by = "the device"});
  EXPECT_THAT(device.Reserve(Use::kWeights, 2).error().message,
              HasSubstr("not enough device memory for the weights"));
}

TEST(Ledger, DescribesWhatIsReservedAgainstTheBudget) {
  Ledger ledger(Host(100 * kMib));
  const auto weights = ledger.Reserve(Use::kWeights, 10 * kMib);
  const auto kv_cache = ledger.Reserve(Use::kKvCache, 5 * kMib);
  const auto working = ledger.Reserve(Use::kWorking, 3 * kMib);
  const auto program = ledger.Reserve(Use::kProgram, 2 * kMib);
  EXPECT_EQ(ledger.Describe(),
            "needed 20.0 MiB (weights 10.0 MiB, KV cache 5.00 MiB, working memory 5.00 MiB), "
            "available 100 MiB");
  const auto exchange = ledger.Reserve(Use::kExchange, 4 * kMib);
  const auto staging = ledger.Reserve(Use::kStaging, kMib);
  EXPECT_EQ(ledger.Describe(),
            "needed 25.0 MiB (weights 10.0 MiB, KV cache 5.00 MiB, working memory 5.00 MiB, "
            "exchange buffers 4.00 MiB, staging buffers 1.00 MiB), available 100 MiB");
}

TEST(Reservation, MovesWithoutBeingGivenBackOrCountedTwice) {
  Ledger ledger(Host(10 * kMib));
  Reservation first = *ledger.Reserve(Use::kWeights, 4 * kMib);
  Reservation second = std::move(first);
  EXPECT_EQ(first.size_bytes(), 0u);  // NOLINT: what a move leaves
  EXPECT_EQ(second.size_bytes(), 4 * kMib);
  EXPECT_EQ(ledger.reserved().total(), 4 * kMib);

  Reservation third = *ledger.Reserve(Use::kKvCache, 3 * kMib);
  third = std::move(second);
  EXPECT_EQ(ledger.reserved()[Use::kKvCache], 0u) << "given back as soon as it is replaced";
  EXPECT_EQ(ledger.reserved()[Use::kWeights], 4 * kMib);
  Reservation& same = third;
  third = std::move(same);
  EXPECT_EQ(third.size_bytes(), 4 * kMib);
  third = Reservation();
  EXPECT_EQ(ledger.reserved().total(), 0u);
}

TEST(Reservation, LastsAsLongAsItsMemory) {
  Ledger ledger(Host(10 * kMib));
  const size_t before = hardware::HugeBuffer::total_bytes();
  {
    Result<Reservation> buffer = ledger.Allocate(Use::kWorking, 3 * kMib);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(ledger.reserved()[Use::kWorking], 3 * kMib);
    EXPECT_EQ(hardware::HugeBuffer::total_bytes() - before, 3 * kMib);
    ASSERT_EQ(buffer->bytes().size(), 3 * kMib);
    buffer->data()[3 * kMib - 1] = std::byte{1};
    const Reservation moved = *std::move(buffer);
    EXPECT_EQ(moved.size_bytes(), 3 * kMib);
    EXPECT_EQ(moved.bytes().back(), std::byte{1});
    EXPECT_EQ(ledger.reserved().total(), 3 * kMib);
  }
  EXPECT_EQ(ledger.reserved().total(), 0u);
  EXPECT_EQ(hardware::HugeBuffer::total_bytes(), before);
}

TEST(Reservation, OfMemoryThatCannotBeHadIsGivenBack) {
  Ledger ledger(Host(10 * kMib));
  EXPECT_FALSE(ledger.Allocate(Use::kWorking, 11 * kMib));
  Ledger unlimited;
  const Result<Reservation> refused = unlimited.Allocate(Use::kWorking, UINT64_MAX / 4);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("the working memory"));
  EXPECT_EQ(unlimited.reserved().total(), 0u);

  for (const TierKind kind : {TierKind::kDevice, TierKind::kPinned}) {
    Ledger of_no_gpu({.kind = kind, .gpu = 12345});
    const Result<Reservation> not_there = of_no_gpu.Allocate(Use::kWorking, kMib);
    ASSERT_FALSE(not_there);
    EXPECT_EQ(not_there.error().kind, ErrorKind::kUnavailable) << not_there.error().message;
    EXPECT_EQ(of_no_gpu.reserved().total(), 0u);
  }
  EXPECT_FALSE(DeviceTier(12345, 1));
}

TEST(Ledger, NeverGivesMoreThanItHasToManyThreads) {
  constexpr uint64_t kBudget = 5;
  Ledger ledger(Host(kBudget));
  std::vector<int> granted(4, 0);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < granted.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < 2000; ++round) {
          const Result<Reservation> reserved = ledger.Reserve(Use::kStaging, 2);
          if (reserved) ++granted[i];
          EXPECT_LE(ledger.reserved().total(), kBudget);
        }
      });
    }
  }
  EXPECT_GT(*std::ranges::max_element(granted), 0);
  EXPECT_EQ(ledger.reserved().total(), 0u);
}

TEST(LedgerDeathTest, OutlivesWhatIsReservedInIt) {
  EXPECT_DEATH(
      {
        Reservation reserved;
        Ledger ledger;
        reserved = *ledger.Reserve(Use::kWeights, kMib);
      },
      "still reserved: .*weights 1.00 MiB");
}

TEST(HostTier, IsAnEqualPartOfWhatThereIs) {
  const std::vector<int> cpus = *hardware::CurrentAffinity();
  const Result<Tier> whole = HostTier(1, cpus);
  const Result<Tier> half = HostTier(2, cpus);
  ASSERT_TRUE(whole && half);
  EXPECT_GT(half->budget_bytes, 0u);
  // The machine is not idle meanwhile.
  EXPECT_LT(half->budget_bytes, whole->budget_bytes * 3 / 4);
  EXPECT_EQ(whole->limited_by, half->limited_by);
}

TEST(HostTier, IsOnTheNodeOfTheThreadsIfTheMachineHasSeveral) {
  const int cpu = hardware::CurrentAffinity()->front();
  const Result<Tier> tier = HostTier(1, {cpu});
  const Result<hardware::NumaHome> home = hardware::HomeOf({cpu});
  ASSERT_TRUE(tier && home);
  EXPECT_EQ(tier->numa_node, home->node);
  EXPECT_EQ(tier->spills, home->node && !home->is_bound);
}

}  // namespace
}  // namespace convene::memory
