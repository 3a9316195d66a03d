#include "schedule/hazards.h"

#include <gtest/gtest.h>

#include "schedule/task_table.h"

namespace convene::schedule {
namespace {

using enum TaskKind;

Task At(TaskKind kind, LaneKind lane, std::vector<TaskId> after = {}) {
  return {.kind = kind, .lane = {0, lane}, .layer = 0, .after = std::move(after)};
}

TEST(Hazards, LanesAndDependenciesOrder) {
  Schedule schedule;
  schedule.tasks = {At(kRoute, LaneKind::kCompute), At(kCounts, LaneKind::kSend, {0}),
                    At(kDispatch, LaneKind::kSend, {0}), At(kShared, LaneKind::kCompute),
                    At(kExperts, LaneKind::kCompute, {2})};
  EXPECT_TRUE(CheckHazards(schedule).ok());
}

TEST(Hazards, AReadBesideAWriteIsNamed) {
  Schedule schedule;
  schedule.tasks = {At(kRoute, LaneKind::kCompute), At(kCounts, LaneKind::kSend)};
  const Status status = CheckHazards(schedule);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            "tasks 0 (r0 route L0) and 1 (r0 counts L0) touch the same thing in no order");
}

TEST(Hazards, AWriteBesideAReadIsOneToo) {
  // The next layer's rows would overwrite what is being sent.
  Schedule schedule;
  schedule.tasks = {At(kRoute, LaneKind::kCompute), At(kCounts, LaneKind::kSend, {0}),
                    At(kDispatch, LaneKind::kSend, {0}), At(kRoute, LaneKind::kCompute)};
  EXPECT_FALSE(CheckHazards(schedule).ok());
  schedule.tasks.back().after = {2};
  EXPECT_TRUE(CheckHazards(schedule).ok());
}

TEST(Hazards, MicroBatchesHaveRowsOfTheirOwnAndShareTheCache) {
  Schedule schedule;
  schedule.tasks = {At(kRoute, LaneKind::kCompute), At(kCounts, LaneKind::kSend)};
  schedule.tasks[0].micro_batch = 0;
  schedule.tasks[1].micro_batch = 1;
  EXPECT_TRUE(CheckHazards(schedule).ok());

  schedule.tasks = {At(kAttention, LaneKind::kCompute), At(kAttention, LaneKind::kHost)};
  schedule.tasks[0].micro_batch = 0;
  schedule.tasks[1].micro_batch = 1;
  EXPECT_FALSE(CheckHazards(schedule).ok());
  schedule.tasks[1].layer = 1;
  EXPECT_TRUE(CheckHazards(schedule).ok());
}

TEST(Hazards, ATaskOfNoMicroBatchWorksOnAll) {
  Schedule schedule;
  schedule.tasks = {At(kEmbed, LaneKind::kCompute), At(kNormalize, LaneKind::kCompute),
                    At(kGatherRows, LaneKind::kSend, {1}), At(kHead, LaneKind::kCompute)};
  for (int id = 0; id < 3; ++id) schedule.tasks[id].micro_batch = 1;
  EXPECT_FALSE(CheckHazards(schedule).ok());
  schedule.tasks[3].after = {2};
  EXPECT_TRUE(CheckHazards(schedule).ok());
}

TEST(Hazards, OrderHoldsThroughOtherLanes) {
  Schedule schedule;
  schedule.tasks = {At(kExperts, LaneKind::kCompute), At(kReduce, LaneKind::kCompute),
                    At(kCombine, LaneKind::kReceive, {1}), At(kFinish, LaneKind::kHost, {2})};
  EXPECT_TRUE(CheckHazards(schedule).ok());
  schedule.tasks[3].after = {0};
  EXPECT_FALSE(CheckHazards(schedule).ok());
}

TEST(TaskTable, HasEveryKind) {
  for (int kind = 0; kind < kNumTaskKinds; ++kind) {
    EXPECT_FALSE(TraitsOf(static_cast<TaskKind>(kind)).name.empty()) << kind;
  }
}

}  // namespace
}  // namespace convene::schedule
