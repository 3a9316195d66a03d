#include "engine/ask_for_costs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "comm/threads/thread_group.h"
#include "engine/announce_load.h"
#include "engine/kept_machine_test.h"
#include "engine/ranks.h"

namespace convene::engine {
namespace {

TEST(AskForCosts, AllRanksMeasureWithinTheBudget) {
  constexpr uint64_t kBudget = uint64_t{1} << 30;
  std::array<uint64_t, 2> had = {};
  comm::RunOnThreads(2, [&](comm::Group& group) {
    const StepCostsSource source = [&](const CostsRequest& request) -> Result<KnownCosts> {
      had[static_cast<size_t>(request.group.rank())] = request.ledger.available_bytes();
      return KnownCosts{};
    };
    if (group.rank() != 0) {
      EXPECT_TRUE(FollowRankZero(group, "", source));
      return;
    }
    const auto known = AskForCosts(group, {.num_threads = 1, .memory_budget = kBudget}, source);
    EXPECT_TRUE(known) << known.error().message;
    if (known) {
      EXPECT_EQ(known->memory_of_ranks.size(), 2u);
      EXPECT_LE(std::ranges::max(known->memory_of_ranks), kBudget);
    }
    Dismiss(group);
  });
  for (const uint64_t bytes : had) {
    EXPECT_GT(bytes, 0u);
    EXPECT_LT(bytes, kBudget) << "of which the program has a part";
  }
}

// Other kernels than those of a model would cost something else.
TEST(AskForCosts, PanelsAreReadWhileMeasuringAsModelsReadThem) {
  const KeptMachine kept(testing::TempDir() + fmt::format("ask_for_costs_{}", getpid()));
  std::array<std::vector<int>, 2> ways;
  comm::RunOnThreads(2, [&](comm::Group& group) {
    const StepCostsSource source = [&](const CostsRequest& request) -> Result<KnownCosts> {
      if (request.kernels.streaming != nullptr) {
        ways[static_cast<size_t>(group.rank())] = request.kernels.streaming->numbers();
      }
      return KnownCosts{};
    };
    if (group.rank() != 0) {
      EXPECT_TRUE(FollowRankZero(group, "", source));
      return;
    }
    EXPECT_TRUE(AskForCosts(group, {.num_threads = 1}, source));
    Dismiss(group);
  });
  for (const std::vector<int>& way : ways) EXPECT_EQ(way, kept.streaming.numbers());
}

}  // namespace
}  // namespace convene::engine
