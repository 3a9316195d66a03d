#include "simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cost/link_seconds.h"

namespace convene::simulate {
namespace {

using cost::Rates;
using schedule::LaneKind;
using schedule::Schedule;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;
using schedule::Timeline;

// Nothing here depends on routing.
double NoSizes(const schedule::Size&) { return 0; }

Timeline Simulated(const Schedule& schedule, const Rates& rates) {
  const Status status = Validate(schedule);
  CHECK(status.ok(), "{}", status.error().message);
  return Simulate(schedule, rates, NoSizes);
}

Task Compute(int rank, double flops, std::vector<TaskId> after = {}) {
  return {.kind = TaskKind::kExperts,
          .lane = {rank, LaneKind::kCompute},
          .after = std::move(after),
          .work = {.flops = schedule::Constant(flops)}};
}

Task Load(double memory_bytes, std::vector<TaskId> after = {}) {
  return {.kind = TaskKind::kLoadPage,
          .lane = {0, LaneKind::kLoad},
          .after = std::move(after),
          .work = {.memory_bytes = schedule::Constant(memory_bytes)}};
}

Task Dispatch(int rank, int collective, double bytes, std::vector<TaskId> after = {}) {
  return {.kind = TaskKind::kDispatch,
          .lane = {rank, LaneKind::kSend},
          .after = std::move(after),
          .collective = collective,
          .work = {.link_bytes = schedule::Constant(bytes)}};
}

void ExpectTimes(const Timeline& timeline, const std::vector<std::pair<double, double>>& times) {
  ASSERT_EQ(timeline.tasks.size(), times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_NEAR(timeline.tasks[i].start, times[i].first, 1e-9) << "start of task " << i;
    EXPECT_NEAR(timeline.tasks[i].end, times[i].second, 1e-9) << "end of task " << i;
  }
}

TEST(Simulate, NothingTakesNoTime) { EXPECT_EQ(Simulated({}, {}).seconds(), 0); }

TEST(Simulate, ATaskWithoutWorkStartsAndEndsAtOnce) {
  const Rates rates = {.ranks = {{.flops = cost::ConstantRate(2)}}};
  ExpectTimes(Simulated({.tasks = {Compute(0, 6), Compute(0, 0), Compute(0, 2)}}, rates),
              {{0, 3}, {3, 3}, {3, 4}});
}

TEST(Simulate, ALongChainWithoutWorkNeedsNoStack) {
  Schedule schedule;
  for (int i = 0; i < 200'000; ++i) schedule.tasks.push_back(Compute(0, 0));
  EXPECT_EQ(Simulated(schedule, {}).seconds(), 0);
}

TEST(Simulate, ALaneRunsItsTasksInOrder) {
  // The second could run at once, but its lane has the first one before it.
  const Rates rates = {
      .ranks = {{.flops = cost::ConstantRate(1), .memory = cost::ConstantRate(1)}}};
  ExpectTimes(Simulated({.tasks = {Load(2), Compute(0, 1, {0}), Compute(0, 1)}}, rates),
              {{0, 2}, {2, 3}, {3, 4}});
}

TEST(Simulate, TheSlowestDemandBoundsATaskAfterItsFixedTime) {
  Rates rates = {.ranks = {{.flops = cost::ConstantRate(4), .memory = cost::ConstantRate(2)}}};
  rates.fixed_seconds[static_cast<size_t>(TaskKind::kExperts)] = 0.5;
  Task task = Compute(0, 4);
  task.work.memory_bytes = schedule::Constant(6);
  ExpectTimes(Simulated({.tasks = {task}}, rates), {{0, 3.5}});
}

TEST(Simulate, TwoEqualTasksOnOneResourceTakeTwiceAsLong) {
  const Rates rates = {.shared_memory = cost::ConstantRate(1)};
  Task stage = Load(3);
  stage.lane.kind = LaneKind::kStage;
  ExpectTimes(Simulated({.tasks = {Load(3), stage}}, rates), {{0, 6}, {0, 6}});
}

TEST(Simulate, OneThatEndsLeavesItsShareToTheOther) {
  const Rates rates = {.ranks = {{.memory = cost::ConstantRate(1)}}};
  Task stage = Load(3);
  stage.lane.kind = LaneKind::kStage;
  ExpectTimes(Simulated({.tasks = {Load(1), stage}}, rates), {{0, 2}, {0, 4}});
}

TEST(Simulate, ATaskThatIsHeldBackElsewhereTakesOnlyWhatItNeeds) {
  // The first computes for 10 s and reads 0.1 of the memory's rate meanwhile; the other has 0.9.
  const Rates rates = {
      .ranks = {{.flops = cost::ConstantRate(1), .memory = cost::ConstantRate(1)}}};
  Task compute = Compute(0, 10);
  compute.work.memory_bytes = schedule::Constant(1);
  ExpectTimes(Simulated({.tasks = {compute, Load(9)}}, rates), {{0, 10}, {0, 10}});
}

TEST(Simulate, MoreStreamsHaveTheRateOfTheirCurve) {
  // One stream has 2, two have 3 together.
  const Rates rates = {.ranks = {{.memory = {{2, 3}}}}};
  Task stage = Load(6);
  stage.lane.kind = LaneKind::kStage;
  ExpectTimes(Simulated({.tasks = {Load(3), stage}}, rates), {{0, 2}, {0, 3.5}});
}

TEST(Simulate, CoresLeftToCommunicationAreMissedByCompute) {
  const Rates rates = {
      .ranks = {{.cores = 4, .communication_cores = 1, .flops = cost::LinearRate(4, 4)}}};
  ExpectTimes(Simulated({.tasks = {Compute(0, 6)}}, rates), {{0, 2}});
}

// A GPU and its host each read their own memory; without a rate of the host's they share one.
TEST(Simulate, AHostBesideADeviceReadsItsOwnMemory) {
  Rates rates = {.ranks = {{.memory = cost::ConstantRate(2)}}};
  Task device = Compute(0, 0);
  device.work.memory_bytes = schedule::Constant(6);
  Task host = device;
  host.lane.kind = LaneKind::kHost;
  ExpectTimes(Simulated({.tasks = {device, host}}, rates), {{0, 6}, {0, 6}});
  rates.ranks.front().host_memory = cost::ConstantRate(1);
  ExpectTimes(Simulated({.tasks = {device, host}}, rates), {{0, 3}, {0, 6}});
}

TEST(Simulate, ARankOfHalfTheRateTakesTwiceTheTime) {
  const cost::RankRates fast = {.flops = cost::ConstantRate(4), .memory = cost::ConstantRate(2)};
  const cost::RankRates slow = {.flops = cost::ConstantRate(2), .memory = cost::ConstantRate(1)};
  const Rates rates = {.ranks = {fast, slow}};
  Task reads = Compute(0, 4);  // bound by memory
  reads.work.memory_bytes = schedule::Constant(6);
  Task reads_slowly = reads;
  reads_slowly.lane.rank = 1;
  const Schedule schedule = {.num_ranks = 2,
                             .tasks = {Compute(0, 8), reads, Compute(1, 8), reads_slowly}};
  ExpectTimes(Simulated(schedule, rates), {{0, 2}, {2, 5}, {0, 4}, {4, 10}});
}

TEST(Simulate, CoresLeftToCommunicationAreThoseOfTheRank) {
  const cost::RankRates all = {.cores = 4, .flops = cost::LinearRate(4, 4)};
  cost::RankRates three = all;
  three.communication_cores = 1;
  const Schedule schedule = {.num_ranks = 2, .tasks = {Compute(0, 12), Compute(1, 12)}};
  ExpectTimes(Simulated(schedule, {.ranks = {all, three}}), {{0, 3}, {0, 4}});
}

TEST(Simulate, CommunicationThatTakesCoresSlowsComputeOnThem) {
  // 4 bytes at 1 byte/s, each with 0.5 s of the only core: compute has half of it meanwhile.
  const Rates rates = {.ranks = {{.flops = cost::ConstantRate(1)}},
                       .link = cost::LinkKind::kSharedMedium,
                       .link_bytes_per_second = 1,
                       .link_core_seconds_per_byte = 0.5};
  ExpectTimes(Simulated({.tasks = {Dispatch(0, 0, 4), Compute(0, 4)}}, rates), {{0, 4}, {0, 6}});
}

TEST(Simulate, ACollectiveStartsWhenTheLastRankIsThereAndEndsForAllAtOnce) {
  const Rates rates = {.ranks = {{.flops = cost::ConstantRate(1)}}, .link_bytes_per_second = 1};
  const Schedule schedule = {.num_ranks = 2,
                             .tasks = {Compute(0, 1), Dispatch(0, 0, 2, {0}), Compute(1, 3),
                                       Dispatch(1, 0, 5, {2}), Compute(0, 1, {1})}};
  ExpectTimes(Simulated(schedule, rates), {{0, 1}, {3, 8}, {0, 3}, {3, 8}, {8, 9}});
}

TEST(Simulate, ACollectiveThatMovesNothingStillWaitsForAll) {
  const Rates rates = {.ranks = {{.flops = cost::ConstantRate(1)}}, .link_bytes_per_second = 1};
  const Schedule schedule = {
      .num_ranks = 2,
      .tasks = {Dispatch(0, 0, 0), Compute(1, 3), Dispatch(1, 0, 0, {1}), Compute(0, 1, {0})}};
  ExpectTimes(Simulated(schedule, rates), {{3, 3}, {0, 3}, {3, 3}, {3, 4}});
}

TEST(Simulate, ASharedMediumCarriesTheBytesOfAllRanks) {
  const Schedule schedule = {.num_ranks = 2, .tasks = {Dispatch(0, 0, 2), Dispatch(1, 0, 3)}};
  Rates rates = {.link = cost::LinkKind::kSharedMedium, .link_bytes_per_second = 1};
  rates.link_latency = 0.25;
  ExpectTimes(Simulated(schedule, rates), {{0, 5.25}, {0, 5.25}});
  rates.link = cost::LinkKind::kPerRank;
  ExpectTimes(Simulated(schedule, rates), {{0, 3.25}, {0, 3.25}});
}

TEST(Simulate, ARankThatAllSendToIsBoundByWhatItReceives) {
  // 1 and 2 send 3 bytes each to 0: 6 bytes into one rank.
  const schedule::Size to_first = {schedule::SizeKind::kSent, 0, 0, 1, 0};
  Schedule schedule = {.num_ranks = 3};
  for (int rank = 0; rank < 3; ++rank) {
    schedule.tasks.push_back(Dispatch(rank, 0, 0));
    if (rank > 0) schedule.tasks.back().work.link_bytes = {{1, to_first}};
  }
  const Rates rates = {.link_bytes_per_second = 1};
  EXPECT_NEAR(Simulate(schedule, rates, [](const schedule::Size&) { return 3.0; }).seconds(), 6,
              1e-9);
}

TEST(Simulate, TwoCollectivesOnOneLinkShareIt) {
  Schedule schedule = {.num_ranks = 2};
  for (int rank = 0; rank < 2; ++rank) {
    schedule.tasks.push_back(Dispatch(rank, 0, 1));
    Task combine = Dispatch(rank, 1, 2);
    combine.kind = TaskKind::kCombine;
    combine.lane.kind = LaneKind::kReceive;
    schedule.tasks.push_back(combine);
  }
  const Rates rates = {.link = cost::LinkKind::kSharedMedium, .link_bytes_per_second = 1};
  ExpectTimes(Simulated(schedule, rates), {{0, 4}, {0, 6}, {0, 4}, {0, 6}});
}

// Random schedules, on which properties hold.

Schedule RandomSchedule(std::mt19937& random, int num_ranks, int num_steps) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Schedule schedule = {.num_ranks = num_ranks};
  const auto some_before = [&](int rank) {
    std::vector<TaskId> after;
    for (int i = below(3); i > 0 && !schedule.tasks.empty(); --i) {
      const int id = below(static_cast<int>(schedule.tasks.size()));
      if (schedule.tasks[id].lane.rank == rank || below(2) == 0) after.push_back(id);
    }
    return after;
  };
  for (int step = 0; step < num_steps; ++step) {
    if (below(4) == 0) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        schedule.tasks.push_back(Dispatch(rank, step, below(4), {}));
      }
      // Earlier tasks only, so that there is no cycle through the collective.
      const auto first = static_cast<TaskId>(schedule.tasks.size()) - num_ranks;
      if (first > 0) schedule.tasks[first].after = {below(first)};
      continue;
    }
    const int rank = below(num_ranks);
    Task task = Compute(rank, below(4), some_before(rank));
    task.lane.kind = static_cast<LaneKind>(below(2));  // compute or host
    task.work.memory_bytes = schedule::Constant(below(4));
    schedule.tasks.push_back(task);
  }
  return schedule;
}

// Activities that share nothing: the longest path by their seconds alone.
double LongestPath(const schedule::ActivityGraph& graph, const cost::Prices& prices) {
  std::vector<double> end(graph.num_activities(), 0);
  std::vector<int32_t> waits = graph.num_before;
  std::vector<int> ready;
  for (int i = 0; i < graph.num_activities(); ++i) {
    if (waits[i] == 0) ready.push_back(i);
  }
  double longest = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    const int at = ready[i];
    end[at] += SecondsAlone(prices, at);
    longest = std::max(longest, end[at]);
    for (const int next : graph.next_of(at)) {
      end[next] = std::max(end[next], end[at]);
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  return longest;
}

Rates SomeRates() {
  return {.ranks = {{.flops = cost::ConstantRate(2)}},
          .shared_memory = {{2, 3, 3.5}},
          .link = cost::LinkKind::kSharedMedium,
          .link_bytes_per_second = 1.5,
          .link_latency = 0.1};
}

TEST(Simulate, WithoutSharingItIsTheLongestPath) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const Schedule schedule = RandomSchedule(random, 3, 60);
    Rates rates;  // nothing is shared where there are no rates
    rates.fixed_seconds[static_cast<size_t>(TaskKind::kExperts)] = 1.5;
    rates.fixed_seconds[static_cast<size_t>(TaskKind::kDispatch)] = 0.75;
    const auto graph = BuildActivityGraph(schedule);
    const auto prices = PriceSchedule(schedule, graph, rates, NoSizes);
    EXPECT_NEAR(Simulated(schedule, rates).seconds(), LongestPath(graph, prices), 1e-9);
  }
}

TEST(Simulate, SharingNeverMakesItFasterThanTheLongestPath) {
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    const Schedule schedule = RandomSchedule(random, 3, 60);
    const auto graph = BuildActivityGraph(schedule);
    const auto prices = PriceSchedule(schedule, graph, SomeRates(), NoSizes);
    EXPECT_GE(Simulated(schedule, SomeRates()).seconds(), LongestPath(graph, prices) - 1e-9);
  }
}

TEST(Simulate, WorkIsConservedOnAResourceThatIsNeverIdle) {
  // However they share it, tasks that all wait for one memory take as long as their sum.
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    Schedule schedule = {.num_ranks = 4};
    double sum = 0;
    for (int i = 0; i < 60; ++i) {
      Task task = Load(1 + static_cast<double>(random() % 9));
      task.lane = {static_cast<int>(random() % 4), LaneKind::kLoad};
      sum += task.work.memory_bytes[0].factor;
      schedule.tasks.push_back(task);
    }
    const Rates rates = {.shared_memory = cost::ConstantRate(1)};
    EXPECT_NEAR(Simulated(schedule, rates).seconds(), sum, 1e-9 * sum);
  }
}

TEST(Simulate, TasksFollowThoseBeforeThem) {
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    const Schedule schedule = RandomSchedule(random, 3, 100);
    const Timeline timeline = Simulated(schedule, SomeRates());
    const std::vector<TaskId> previous = PreviousOnLane(schedule);
    for (size_t id = 0; id < schedule.tasks.size(); ++id) {
      ASSERT_GE(timeline.tasks[id].end, timeline.tasks[id].start);
      for (const TaskId before : schedule.tasks[id].after) {
        ASSERT_LE(timeline.tasks[before].end, timeline.tasks[id].start);
      }
      if (previous[id] >= 0) {
        ASSERT_LE(timeline.tasks[previous[id]].end, timeline.tasks[id].start);
      }
    }
  }
}

TEST(Simulate, TwiceTheRatesTakeHalfTheTime) {
  std::mt19937 random(5);
  Rates twice = SomeRates();
  for (double& rate : twice.ranks[0].flops.rates) rate *= 2;
  for (double& rate : twice.shared_memory.rates) rate *= 2;
  twice.link_bytes_per_second *= 2;
  twice.link_latency /= 2;
  for (int round = 0; round < 20; ++round) {
    const Schedule schedule = RandomSchedule(random, 3, 100);
    const double seconds = Simulated(schedule, SomeRates()).seconds();
    EXPECT_NEAR(Simulated(schedule, twice).seconds(), seconds / 2, 1e-9 * seconds);
  }
}

// What the simulator should do, by small steps and a search over everything in each.
class SmallSteps {
 public:
  SmallSteps(const Schedule& schedule, const Rates& rates)
      : schedule_(schedule),
        graph_(BuildActivityGraph(schedule)),
        prices_(PriceSchedule(schedule, graph_, rates, NoSizes)),
        fixed_(prices_.fixed_seconds),
        left_(graph_.num_activities(), 1.0),
        ended_(graph_.num_activities(), false) {}

  double Seconds(double step) {
    double now = 0;
    for (size_t num_ended = 0; num_ended < ended_.size();) {
      const std::vector<int> running = Running();
      std::vector<int> working;
      for (const int i : running) {
        if (fixed_[i] > 0) {
          fixed_[i] -= step;
        } else if (prices_.demands_of(i).empty()) {
          left_[i] = 0;
        } else {
          working.push_back(i);
        }
      }
      const std::vector<double> speeds = Speeds(working);
      for (size_t i = 0; i < working.size(); ++i) left_[working[i]] -= speeds[i] * step;
      bool work_done = false;
      for (const int i : running) {
        if (fixed_[i] > 0 || left_[i] > 1e-9) continue;
        ended_[i] = true;
        ++num_ended;
        work_done = work_done || !prices_.demands_of(i).empty();
      }
      if (!working.empty() || work_done || AnyFixed(running)) now += step;
    }
    return now;
  }

 private:
  bool AnyFixed(const std::vector<int>& running) const {
    return std::any_of(running.begin(), running.end(), [&](int i) { return fixed_[i] > 0; });
  }

  std::vector<int> Running() const {
    std::vector<bool> waits(ended_.size(), false);
    for (size_t i = 0; i < ended_.size(); ++i) {
      if (ended_[i]) continue;
      for (const int next : graph_.next_of(static_cast<int>(i))) waits[next] = true;
    }
    std::vector<int> running;
    for (size_t i = 0; i < ended_.size(); ++i) {
      if (!ended_[i] && !waits[i]) running.push_back(static_cast<int>(i));
    }
    return running;
  }

  // Levels are lowered and raised by small factors until all resources are used up or not wanted.
  std::vector<double> Speeds(const std::vector<int>& working) const {
    const size_t num_resources = prices_.resources.size();
    std::vector<double> level(num_resources, 1e6);
    std::vector<int> streams(num_resources, 0);
    for (const int i : working) {
      for (const auto& demand : prices_.demands_of(i)) streams[demand.resource] += demand.streams;
    }
    std::vector<double> speeds(working.size());
    for (double factor = 1.5; factor > 1.000001; factor = 1 + (factor - 1) * 0.98) {
      std::vector<double> used(num_resources, 0);
      for (size_t i = 0; i < working.size(); ++i) {
        speeds[i] = 1e9;
        for (const auto& demand : prices_.demands_of(working[i])) {
          const auto& rate = prices_.resources[demand.resource].rate;
          speeds[i] = std::min({speeds[i], rate.at(demand.streams) / demand.amount,
                                demand.streams * level[demand.resource] / demand.amount});
        }
        for (const auto& demand : prices_.demands_of(working[i])) {
          used[demand.resource] += speeds[i] * demand.amount;
        }
      }
      for (size_t r = 0; r < num_resources; ++r) {
        if (streams[r] == 0) continue;
        level[r] *= used[r] > prices_.resources[r].rate.at(streams[r]) ? 1 / factor : factor;
        level[r] = std::min(level[r], 1e6);
      }
    }
    return speeds;
  }

  const Schedule& schedule_;
  schedule::ActivityGraph graph_;
  cost::Prices prices_;
  std::vector<double> fixed_;
  std::vector<double> left_;
  std::vector<bool> ended_;
};

TEST(Simulate, AgreesWithSmallStepsOnRandomSchedules) {
  std::mt19937 random(6);
  for (int round = 0; round < 10; ++round) {
    const Schedule schedule = RandomSchedule(random, 3, 25);
    const double seconds = Simulated(schedule, SomeRates()).seconds();
    // A step of rounding per activity on the longest path.
    const double step = 0.01;
    EXPECT_NEAR(SmallSteps(schedule, SomeRates()).Seconds(step), seconds,
                0.03 * seconds + 25 * step)
        << ToText(schedule);
  }
}

// What exchanges had of a link that all shared gives, shared again, the times that were measured.
TEST(Simulate, SharesALinkAsItWasShared) {
  Schedule schedule{.num_ranks = 2};
  for (int collective = 0; collective < 2; ++collective) {
    for (int rank = 0; rank < 2; ++rank) {
      Task task = Dispatch(rank, collective, 0);
      if (collective == 1) task.lane.kind = LaneKind::kReceive;
      schedule.tasks.push_back(task);
    }
  }
  schedule.tasks.push_back(Compute(0, 0));
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const Timeline measured{{{0, 5}, {0, 6}, {0, 8}, {0, 8}, {0, 3}}};
  const std::vector<double> seconds = cost::LinkSeconds(schedule, graph, measured);
  const cost::Prices prices{
      .resources = {{"link", cost::ResourceKind::kLink, cost::ConstantRate(1)}},
      .fixed_seconds = {0, 0, 3},
      .first_demand = {0, 1, 2, 2},
      .demands = {{.amount = seconds[0]}, {.amount = seconds[1]}}};
  ExpectTimes(Simulate(schedule, graph, prices), {{0, 6}, {0, 6}, {0, 8}, {0, 8}, {0, 3}});
}

}  // namespace
}  // namespace convene::simulate
