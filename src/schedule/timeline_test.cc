#include "schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::schedule {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

Task TimedCompute(int rank, std::vector<TaskId> after = {}) {
  return {
      .kind = TaskKind::kExperts, .lane = {rank, LaneKind::kCompute}, .after = std::move(after)};
}

Task TimedDispatch(int rank, int collective, std::vector<TaskId> after = {}) {
  return {.kind = TaskKind::kDispatch,
          .lane = {rank, LaneKind::kSend},
          .after = std::move(after),
          .collective = collective};
}

TEST(Timeline, OfNothingTakesNoTime) {
  EXPECT_EQ(Timeline{}.seconds(), 0);
  EXPECT_THAT(IdleShares({}, {}), ElementsAre(0));
  EXPECT_THAT(OverlapShares({}, {}), ElementsAre(0));
  EXPECT_TRUE(CriticalPath({}, {}).empty());
}

TEST(Timeline, ATaskThatDidNotRunTakesNoTime) {
  EXPECT_EQ(TaskTime{}.seconds(), 0);
  const Schedule schedule = {.tasks = {TimedCompute(0), TimedCompute(0)}};
  const Timeline timeline = {{{0, 2}, {}}};
  EXPECT_EQ(timeline.seconds(), 2);
  EXPECT_THAT(IdleShares(schedule, timeline), ElementsAre(0));
  EXPECT_THAT(CriticalPath(schedule, timeline), ElementsAre(0));
}

TEST(Timeline, IdleIsWhereNothingComputes) {
  // Rank 0 computes 0-2 and 3-4 of 4 seconds, on two lanes that overlap; rank 1 sends only.
  Task host = TimedCompute(0);
  host.lane.kind = LaneKind::kHost;
  const Schedule schedule = {
      .num_ranks = 2, .tasks = {TimedCompute(0), host, TimedCompute(0), TimedDispatch(1, 0)}};
  const Timeline timeline = {{{0, 1.5}, {1, 2}, {3, 4}, {0, 4}}};
  EXPECT_THAT(IdleShares(schedule, timeline), ElementsAre(DoubleEq(0.25), DoubleEq(1)));
}

TEST(Timeline, OverlapIsTheShareOfCommunicationUnderCompute) {
  const Schedule schedule = {.num_ranks = 2,
                             .tasks = {TimedDispatch(0, 0), TimedCompute(0), TimedDispatch(0, 1),
                                       TimedCompute(0), TimedDispatch(1, 0)}};
  const Timeline timeline = {{{0, 2}, {1, 3}, {4, 8}, {4, 5}, {0, 2}}};
  EXPECT_THAT(OverlapShares(schedule, timeline), ElementsAre(DoubleEq(2.0 / 6), DoubleEq(0)));
}

TEST(Timeline, SecondsAreSummedByRankAndKind) {
  const Schedule schedule = {
      .num_ranks = 2,
      .tasks = {TimedCompute(0), TimedCompute(0), TimedDispatch(0, 0), TimedCompute(1)}};
  const auto seconds = SecondsByKind(schedule, {{{0, 1}, {2, 4}, {4, 5}, {0, 7}}});
  EXPECT_EQ(seconds[0][static_cast<size_t>(TaskKind::kExperts)], 3);
  EXPECT_EQ(seconds[0][static_cast<size_t>(TaskKind::kDispatch)], 1);
  EXPECT_EQ(seconds[1][static_cast<size_t>(TaskKind::kExperts)], 7);
  EXPECT_EQ(seconds[1][static_cast<size_t>(TaskKind::kDispatch)], 0);
}

TEST(Timeline, TheCriticalPathGoesOverTheRankThatCameLast) {
  // 0 and 2 compute, then all enter the collective (1, 3), then 4 computes on rank 0.
  const Schedule schedule = {.num_ranks = 2,
                             .tasks = {TimedCompute(0), TimedDispatch(0, 0, {0}), TimedCompute(1),
                                       TimedDispatch(1, 0, {2}), TimedCompute(0, {1})}};
  const Timeline timeline = {{{0, 1}, {3, 4}, {0, 3}, {3, 4}, {4, 6}}};
  EXPECT_THAT(CriticalPath(schedule, timeline), ElementsAre(2, 3, 4));
}

TEST(Timeline, TheCriticalPathFollowsTheLaneWhereNothingElseWasLate) {
  const Schedule schedule = {.tasks = {TimedDispatch(0, 0), TimedCompute(0), TimedCompute(0, {0})}};
  const Timeline timeline = {{{0, 1}, {0, 5}, {5, 6}}};
  EXPECT_THAT(CriticalPath(schedule, timeline), ElementsAre(1, 2));
}

TEST(Timeline, MeasuredTimesThatContradictTheScheduleStillGiveAPath) {
  const Schedule schedule = {.tasks = {TimedCompute(0), TimedCompute(0)}};
  EXPECT_THAT(CriticalPath(schedule, {{{0, 5}, {0, 1}}}), ElementsAre(0));
}

}  // namespace
}  // namespace convene::schedule
