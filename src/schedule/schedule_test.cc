#include "schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace convene::schedule {
namespace {

using testing::HasSubstr;

Task On(int rank, LaneKind lane, TaskKind kind, std::vector<TaskId> after = {},
        int collective = -1) {
  return {.kind = kind, .lane = {rank, lane}, .after = std::move(after), .collective = collective};
}

Task Compute(int rank, std::vector<TaskId> after = {}) {
  return On(rank, LaneKind::kCompute, TaskKind::kAttention, std::move(after));
}

Task Dispatch(int rank, int collective, std::vector<TaskId> after = {}) {
  return On(rank, LaneKind::kSend, TaskKind::kDispatch, std::move(after), collective);
}

std::string Message(const Schedule& schedule) {
  const Status status = Validate(schedule);
  return status.ok() ? "valid" : status.error().message;
}

TEST(Schedule, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumTaskKinds; ++i) names.insert(Name(static_cast<TaskKind>(i)));
  EXPECT_EQ(names.size(), kNumTaskKinds);
  EXPECT_EQ(names.count(""), 0);
  EXPECT_EQ(Name(TaskKind::kEmbed), "embed");
  EXPECT_EQ(Name(TaskKind::kGatherNormed), "gather_normed");
  EXPECT_EQ(Name(TaskKind::kDispatch), "dispatch");
  EXPECT_EQ(Name(TaskKind::kStagePage), "stage_page");
  EXPECT_EQ(Name(LaneKind::kStage), "stage");
  EXPECT_EQ(Name(SizeKind::kOne), "one");
  EXPECT_EQ(Name(SizeKind::kExperts), "experts");
}

TEST(Schedule, CollectivesAreCommunicationAndCopiesToo) {
  EXPECT_TRUE(IsCollective(TaskKind::kCounts));
  EXPECT_TRUE(IsCommunication(TaskKind::kCombine));
  EXPECT_TRUE(IsCommunication(TaskKind::kLoadPage));
  EXPECT_FALSE(IsCollective(TaskKind::kLoadPage));
  EXPECT_FALSE(IsCommunication(TaskKind::kExperts));
}

TEST(Schedule, TextHasALinePerTaskWithItsWork) {
  Task experts = On(0, LaneKind::kCompute, TaskKind::kExperts, {0, 1});
  experts.layer = 3;
  experts.micro_batch = 1;
  experts.chunk = 2;
  experts.work.flops = {{25165824, {SizeKind::kSlots, 3, 2, 0}}, {8}};
  experts.work.memory_bytes = Constant(1.5);
  Task route = On(0, LaneKind::kCompute, TaskKind::kRoute);
  route.layer = 3;
  route.encoder = true;
  Task dispatch = Dispatch(0, 7);
  dispatch.layer = 3;
  dispatch.work.link_bytes = {{4096, {SizeKind::kSent, 3, -1, 0, 1}}};
  const Schedule schedule = {.tasks = {route, dispatch, experts}};
  EXPECT_EQ(ToText(schedule),
            "r0 compute route encoder L3\n"
            "r0 send dispatch L3 #7 : link 4096*sent(L3 r0 to r1)\n"
            "r0 compute experts L3 m1 c2 <- r0 route encoder L3, r0 dispatch L3 : "
            "flops 25165824*slots(L3 c2 r0) + 8, memory 1.5\n");
  EXPECT_THAT(ToText(schedule, false), HasSubstr("<- r0 route encoder L3, r0 dispatch L3\n"));
}

TEST(Schedule, AnEmptyScheduleIsValid) {
  EXPECT_EQ(Message({}), "valid");
  EXPECT_EQ(ToText({}), "");
}

TEST(Schedule, WithoutRanksItIsRefused) {
  EXPECT_THAT(Message({.num_ranks = 0}), HasSubstr("at least 1 rank, not 0"));
}

TEST(Schedule, ARankThatIsNotThereIsRefused) {
  EXPECT_THAT(Message({.num_ranks = 2, .tasks = {Compute(2)}}), HasSubstr("on rank 2 of 2"));
  EXPECT_THAT(Message({.num_ranks = 2, .tasks = {Compute(-1)}}), HasSubstr("on rank -1 of 2"));
}

TEST(Schedule, ALaneOrKindThatIsNotThereIsRefused) {
  Task task = Compute(0);
  task.lane.kind = static_cast<LaneKind>(kNumLaneKinds);
  EXPECT_THAT(Message({.tasks = {task}}), HasSubstr("not there"));
  task = Compute(0);
  task.kind = static_cast<TaskKind>(kNumTaskKinds);
  EXPECT_THAT(Message({.tasks = {task}}), HasSubstr("not there"));
}

TEST(Schedule, ADependencyThatIsNotThereIsRefused) {
  EXPECT_THAT(Message({.tasks = {Compute(0, {1})}}), HasSubstr("waits for task 1 of 1"));
  EXPECT_THAT(Message({.tasks = {Compute(0, {-1})}}), HasSubstr("waits for task -1 of 1"));
}

TEST(Schedule, ATaskDoesNotWaitForItselfOrALaterOneOfItsRank) {
  EXPECT_THAT(Message({.tasks = {Compute(0, {0})}}), HasSubstr("list it before"));
  Task load = On(0, LaneKind::kLoad, TaskKind::kLoadPage);
  EXPECT_THAT(Message({.tasks = {Compute(0, {1}), load}}), HasSubstr("list it before"));
}

TEST(Schedule, ATaskMayWaitForALaterOneOfAnotherRank) {
  EXPECT_EQ(Message({.num_ranks = 2, .tasks = {Compute(0, {1}), Compute(1)}}), "valid");
}

TEST(Schedule, ACycleOverRanksIsFound) {
  EXPECT_THAT(Message({.num_ranks = 2, .tasks = {Compute(0, {1}), Compute(1, {0})}}),
              HasSubstr("each of these waits for the one before it"));
}

TEST(Schedule, ACycleThroughTheOrderOfALaneIsFound) {
  // 0 waits for 3, which its lane runs after 2, which waits for 1, which is after 0 on its lane.
  EXPECT_THAT(Message({.num_ranks = 2,
                       .tasks = {Compute(0, {3}), Compute(0), Compute(1, {1}), Compute(1)}}),
              HasSubstr("each of these waits"));
}

TEST(Schedule, ACycleThroughACollectiveIsFound) {
  // Rank 1 enters after a task that waits for what follows the collective on rank 0.
  EXPECT_THAT(
      Message({.num_ranks = 2,
               .tasks = {Dispatch(0, 0), Compute(0, {0}), Compute(1, {1}), Dispatch(1, 0, {2})}}),
      HasSubstr("each of these waits"));
}

TEST(Schedule, CollectivesInDifferentOrdersAreNamed) {
  EXPECT_THAT(Message({.num_ranks = 2,
                       .tasks = {Dispatch(0, 4), Dispatch(0, 9), Dispatch(1, 9), Dispatch(1, 4)}}),
              HasSubstr("of lane send in different orders"));
}

TEST(Schedule, CollectivesOfDifferentLanesMayBeListedInAnyOrder) {
  const auto combine = [](int rank) {
    return On(rank, LaneKind::kReceive, TaskKind::kCombine, {}, 1);
  };
  EXPECT_EQ(
      Message({.num_ranks = 2, .tasks = {Dispatch(0, 0), combine(0), combine(1), Dispatch(1, 0)}}),
      "valid");
}

TEST(Schedule, ACollectiveOfDifferentKindsOrLanesIsRefused) {
  const Task combine = On(1, LaneKind::kSend, TaskKind::kCombine, {}, 0);
  EXPECT_THAT(
      Message({.num_ranks = 2, .tasks = {Dispatch(0, 0), combine}}),
      HasSubstr("collective 0 is task 0 (r0 dispatch) on lane send, and task 1 (r1 combine"));
  const Task elsewhere = On(1, LaneKind::kReceive, TaskKind::kDispatch, {}, 0);
  EXPECT_THAT(Message({.num_ranks = 2, .tasks = {Dispatch(0, 0), elsewhere}}),
              HasSubstr("on lane receive"));
}

TEST(Schedule, ARankEntersACollectiveOnce) {
  EXPECT_THAT(Message({.num_ranks = 2, .tasks = {Dispatch(0, 0), Dispatch(1, 0), Dispatch(0, 0)}}),
              HasSubstr("rank 0 enters collective 0 twice"));
}

TEST(Schedule, ACollectiveKindHasANumberAndNoOtherKind) {
  EXPECT_THAT(Message({.tasks = {Dispatch(0, -1)}}), HasSubstr("collective number -1"));
  Task task = Compute(0);
  task.collective = 1000000000;
  EXPECT_THAT(Message({.tasks = {task}}), HasSubstr("collective number 1000000000"));
}

TEST(Schedule, ALongScheduleIsCheckedWithoutRecursion) {
  Schedule schedule = {.num_ranks = 2};
  for (int i = 0; i < 100'000; ++i) {
    for (int rank = 0; rank < 2; ++rank) schedule.tasks.push_back(Dispatch(rank, i));
  }
  EXPECT_EQ(Message(schedule), "valid");
}

}  // namespace
}  // namespace convene::schedule
