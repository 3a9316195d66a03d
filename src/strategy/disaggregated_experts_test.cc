#include "strategy/disaggregated_experts.h"

#include <gtest/gtest.h>

#include <array>

namespace convene::strategy {
namespace {

TEST(DisaggregatedExperts, AreValidForAllDegreesAndOrders) {
  for (const int attention_ranks : {1, 2, 3}) {
    for (const int expert_ranks : {1, 4}) {
      for (const int micro_batches : {1, 2, 5}) {
        for (const int chunks : {1, 3}) {
          for (const auto order : {AttentionOrder::kAsas, AttentionOrder::kAass}) {
            for (const bool after_shared : {false, true}) {
              const auto schedule =
                  BuildDisaggregatedExperts({.num_layers = 3,
                                             .attention_ranks = attention_ranks,
                                             .expert_ranks = expert_ranks,
                                             .micro_batches = micro_batches,
                                             .chunks = chunks,
                                             .order = order,
                                             .shared_expert = chunks != 3,
                                             .dispatch_after_shared = after_shared});
              const Status status = Validate(schedule);
              ASSERT_TRUE(status.ok()) << status.error().message;
            }
          }
        }
      }
    }
  }
}

TEST(DisaggregatedExperts, HaveAsManyTasksAsTheirDegreesSay) {
  const auto schedule = BuildDisaggregatedExperts(
      {.num_layers = 2, .attention_ranks = 2, .expert_ranks = 3, .micro_batches = 4, .chunks = 5});
  std::array<int, schedule::kNumTaskKinds> counts = {};
  for (const schedule::Task& task : schedule.tasks) ++counts[static_cast<size_t>(task.kind)];
  const auto count = [&](schedule::TaskKind kind) { return counts[static_cast<size_t>(kind)]; };
  EXPECT_EQ(count(schedule::TaskKind::kAttention), 2 * 2 * 4);
  EXPECT_EQ(count(schedule::TaskKind::kShared), 2 * 2 * 4);
  EXPECT_EQ(count(schedule::TaskKind::kExperts), 2 * 3 * 4 * 5);
  EXPECT_EQ(count(schedule::TaskKind::kDispatch), 2 * 5 * 4 * 5);
  EXPECT_EQ(count(schedule::TaskKind::kCombine), 2 * 5 * 4 * 5);
}

}  // namespace
}  // namespace convene::strategy
