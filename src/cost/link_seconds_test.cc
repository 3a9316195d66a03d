#include "cost/link_seconds.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;
using schedule::TaskTime;
using schedule::Timeline;

void AddExchange(Schedule& schedule, TaskKind kind, LaneKind lane, int collective) {
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    schedule.tasks.push_back(
        {.kind = kind, .lane = {rank, lane}, .layer = 0, .collective = collective});
  }
}

// A dispatch and a combine of two ranks each, with computation beside them.
Schedule TwoExchanges() {
  Schedule schedule{.num_ranks = 2};
  AddExchange(schedule, TaskKind::kDispatch, LaneKind::kSend, 0);
  AddExchange(schedule, TaskKind::kCombine, LaneKind::kReceive, 1);
  schedule.tasks.push_back({.kind = TaskKind::kExperts, .lane = {0, LaneKind::kCompute}});
  return schedule;
}

std::vector<double> SecondsOf(const Schedule& schedule, const Timeline& timeline) {
  return LinkSeconds(schedule, schedule::BuildActivityGraph(schedule), timeline);
}

TEST(LinkSeconds, AreThoseOfAnExchangeAloneFromItsLastRankOn) {
  const Timeline timeline{{{0, 4}, {1, 6}, {6, 7}, {6, 8}, {0, 9}}};
  EXPECT_EQ(SecondsOf(TwoExchanges(), timeline), (std::vector<double>{5, 2, 0}));
}

TEST(LinkSeconds, AreDividedWhileSeveralAreUnderWay) {
  // Alone from 1 to 2, two from 2 to 6, alone from 6 to 8.
  const Timeline timeline{{{0, 4}, {1, 6}, {2, 7}, {2, 8}, {0, 9}}};
  EXPECT_EQ(SecondsOf(TwoExchanges(), timeline), (std::vector<double>{3, 4, 0}));
}

TEST(LinkSeconds, AreNoneOfWhatDidNotRun) {
  const Timeline timeline{{{0, 4}, {1, 0}, {2, 7}, {2, 8}, {0, 9}}};
  EXPECT_EQ(SecondsOf(TwoExchanges(), timeline), (std::vector<double>{0, 6, 0}));
}

}  // namespace
}  // namespace convene::cost
