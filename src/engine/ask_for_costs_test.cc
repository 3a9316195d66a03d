#include "engine/ask_for_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "comm/threads/thread_group.h"
#include "engine/announce_load.h"
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

}  // namespace
}  // namespace convene::engine
