// Lanes with threads of their own: that they run at the same time, beside exchanges too, and how a
// run ends when one fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/threads/thread_group.h"
#include "hardware/affinity.h"
#include "runtime/executor_test.h"

namespace convene::runtime {
namespace {

constexpr LaneKind kThreadLanes[] = {LaneKind::kHost, LaneKind::kLoad, LaneKind::kStore,
                                     LaneKind::kStage};

void WaitUntil(const std::atomic<bool>& is_so) {
  while (!is_so) std::this_thread::yield();
}

TEST(ExecutorLanes, AllRunAtTheSameTime) {
  constexpr int kRounds = 10;
  Schedule schedule;
  for (int round = 0; round < kRounds; ++round) {
    schedule.tasks.push_back(Compute());
    for (const LaneKind lane : kThreadLanes) schedule.tasks.push_back(OnLane(lane));
  }
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 3; ++run) {
    FunctionWork work(schedule);
    std::barrier meeting(1 + std::ssize(kThreadLanes));  // nobody passes it alone
    work.compute = [&](TaskId) { meeting.arrive_and_wait(); };
    work.on_lane = [&](TaskId) {
      meeting.arrive_and_wait();
      return Status();
    };
    ASSERT_TRUE(executor.Run(program, work).ok());
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(ExecutorLanes, ALaneStaysOnItsThreadRunAfterRun) {
  const Schedule schedule{.tasks = {OnLane(LaneKind::kLoad), OnLane(LaneKind::kStage),
                                    OnLane(LaneKind::kLoad), Compute({0})}};
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/false, {{0}});
  std::array<std::thread::id, 3> ids;
  for (int run = 0; run < 20; ++run) {
    FunctionWork work(schedule);
    work.on_lane = [&](TaskId id) {
      if (run == 0) ids[id] = std::this_thread::get_id();
      EXPECT_EQ(ids[id], std::this_thread::get_id());
      return Status();
    };
    ASSERT_TRUE(executor.Run(program, work).ok());
  }
  EXPECT_EQ(ids[0], ids[2]);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[0], std::this_thread::get_id());
}

TEST(ExecutorLanes, WhatATaskWroteIsThereForThoseThatWaitForIt) {
  // Plain numbers handed around all lanes many times: a lost event hangs, a missing order is a data
  // race (thread sanitizer) or a wrong sum.
  constexpr int kTurns = 500;
  Schedule schedule;
  for (TaskId id = 0; id < 5 * kTurns; ++id) {
    std::vector<TaskId> after;
    if (id > 0) after.push_back(id - 1);
    schedule.tasks.push_back(id % 5 == 0 ? Compute(after)
                                         : OnLane(kThreadLanes[id % 5 - 1], after));
  }
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/false, {{0}});
  for (int run = 0; run < 3; ++run) {
    FunctionWork work(schedule);
    int64_t value = 0;
    const auto next = [&](TaskId id) { value = value == id ? id + 1 : -1; };
    work.compute = next;
    work.on_lane = [&](TaskId id) {
      next(id);
      return Status();
    };
    ASSERT_TRUE(executor.Run(program, work).ok());
    EXPECT_EQ(value, std::ssize(schedule.tasks));
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(ExecutorLanes, ATaskMayWaitForSeveralLanes) {
  Schedule schedule;
  for (int round = 0; round < 200; ++round) {
    const auto first = static_cast<TaskId>(schedule.tasks.size());
    std::vector<TaskId> after;
    if (round > 0) after.push_back(first - 1);
    for (const LaneKind lane : kThreadLanes) schedule.tasks.push_back(OnLane(lane, after));
    schedule.tasks.push_back(Compute({first, first + 1, first + 2, first + 3}));
  }
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/false, {{0}});
  FunctionWork work(schedule);
  ASSERT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(work.begun().size(), schedule.tasks.size());
  ExpectInOrder(schedule, executor.timeline(), 0);
}

TEST(ExecutorLanes, ALanesRunDoesNotNeedComputation) {
  const Schedule schedule{.tasks = {OnLane(LaneKind::kStage), OnLane(LaneKind::kLoad, {0})}};
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  FunctionWork work(schedule);
  ASSERT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(work.begun(), (std::vector<TaskId>{0, 1}));
}

TEST(ExecutorLanes, AnExchangeThatWaitsForALoadStartsWhileOthersCompute) {
  const Schedule schedule{.tasks = {OnLane(LaneKind::kLoad), Exchange(LaneKind::kSend, {0}, 0),
                                    Compute(), Compute({1})}};
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 10; ++run) {
    FunctionWork work(schedule);
    std::atomic<bool> computes = false;
    std::atomic<bool> exchanged = false;
    work.on_lane = [&](TaskId) {
      WaitUntil(computes);
      return Status();
    };
    work.start = [&](TaskId) {
      return std::make_unique<CountedExchange>(2, [&](bool done) { exchanged = done; });
    };
    work.compute = [&](TaskId id) {
      computes = true;
      if (id == 2) WaitUntil(exchanged);
    };
    ASSERT_TRUE(executor.Run(program, work).ok());
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

// A number of the other rank, and of this one.
class NumberExchange {
 public:
  explicit NumberExchange(comm::Group& group) : group_(group) {}

  std::unique_ptr<comm::Exchange> Start(int queue) {
    const int other = 1 - group_.rank();
    std::array<std::span<const std::byte>, 2> send;
    std::array<std::span<std::byte>, 2> receive;
    send[other] = std::as_bytes(std::span(&own, 1));
    receive[other] = std::as_writable_bytes(std::span(&theirs, 1));
    return group_.StartAllToAll(queue, send, receive, "numbers");
  }

  int64_t own = 0;
  int64_t theirs = 0;

 private:
  comm::Group& group_;
};

TEST(ExecutorLanes, GoBesideExchangesOfRanks) {
  // Load 0 ends only after computation 2, which waits for exchange 1; what it loads is sent by 3.
  const Schedule schedule{.tasks = {OnLane(LaneKind::kLoad), Exchange(LaneKind::kSend, {}, 0),
                                    Compute({1}), Exchange(LaneKind::kReceive, {0}, 1), Compute(),
                                    Compute({3})}};
  for (const bool background : {false, true}) {
    comm::RunOnThreads(2, [&](comm::Group& group) {
      const RankProgram program(schedule, 0);
      Executor executor(background, {{0}});
      for (int run = 0; run < 10; ++run) {
        FunctionWork work(schedule);
        NumberExchange first(group);
        NumberExchange second(group);
        first.own = 100 * run + group.rank();
        std::atomic<bool> computed = false;
        work.on_lane = [&](TaskId) {
          WaitUntil(computed);
          second.own = 2 * first.own;
          return Status();
        };
        work.start = [&](TaskId id) { return id == 1 ? first.Start(0) : second.Start(1); };
        work.compute = [&](TaskId id) { computed = computed || id == 2; };
        EXPECT_TRUE(executor.Run(program, work).ok());
        EXPECT_EQ(first.theirs, 100 * run + 1 - group.rank());
        EXPECT_EQ(second.theirs, 2 * first.theirs);
        ExpectInOrder(schedule, executor.timeline(), 0);
      }
    });
  }
}

TEST(ExecutorLanes, AFailedTaskEndsTheRunAndTheNextOneWorks) {
  // Everything but 0 and 1 waits for load 2, directly or through others; 3 and 4 on their lanes'
  // threads, 5 on the calling one.
  const Schedule schedule{.tasks = {Compute(), OnLane(LaneKind::kLoad, {0}),
                                    OnLane(LaneKind::kLoad), OnLane(LaneKind::kHost, {2}),
                                    OnLane(LaneKind::kLoad), Compute({2}), Compute()}};
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 40; ++run) {
    FunctionWork work(schedule);
    const bool fails = run % 2 == 0;
    work.on_lane = [&](TaskId id) -> Status {
      if (!fails || id != 2) return {};
      // Now and then long enough for those that wait to be asleep.
      if (run % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      return Error{"page 7 ends early"};
    };
    const Status status = executor.Run(program, work);
    if (!fails) {
      ASSERT_TRUE(status.ok());
      ExpectInOrder(schedule, executor.timeline(), 0);
      continue;
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, "load_page: page 7 ends early");
    EXPECT_EQ(work.begun(), (std::vector<TaskId>{0, 1, 2}));
    const auto& times = executor.timeline().tasks;
    EXPECT_GE(times[1].end, times[1].start);
    for (TaskId id = 2; id < std::ssize(times); ++id) {
      EXPECT_LT(times[id].end, times[id].start) << id << " did not run";
    }
  }
}

TEST(ExecutorLanes, WhatIsUnderWayWhenATaskFailsIsDoneFirst) {
  // Computation 0 and store 1 have begun when load 2 fails, and most likely end after it.
  const Schedule schedule{.tasks = {Compute(), OnLane(LaneKind::kStore), OnLane(LaneKind::kLoad),
                                    Compute({2}), OnLane(LaneKind::kStore, {2})}};
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  FunctionWork work(schedule);
  std::barrier begun(3);
  std::atomic<bool> failing = false;
  work.compute = [&](TaskId) {
    begun.arrive_and_wait();
    WaitUntil(failing);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  std::atomic<int> num_stored = 0;
  work.on_lane = [&](TaskId id) -> Status {
    begun.arrive_and_wait();
    if (id == 2) {
      failing = true;
      return Error{"no page"};
    }
    WaitUntil(failing);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ++num_stored;
    return {};
  };
  EXPECT_FALSE(executor.Run(program, work).ok());
  EXPECT_EQ(num_stored, 1);
  EXPECT_EQ(work.begun().size(), 3);
}

TEST(ExecutorLanes, OfSeveralThatFailOneIsTold) {
  Schedule schedule;
  for (const LaneKind lane : kThreadLanes) schedule.tasks.push_back(OnLane(lane));
  schedule.tasks.push_back(Compute({0, 1, 2, 3}));
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 10; ++run) {
    FunctionWork work(schedule);
    work.on_lane = [&](TaskId) -> Status { return Error{"no page"}; };
    const Status status = executor.Run(program, work);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, "load_page: no page");
  }
}

TEST(ExecutorLanes, AFailedLoadEndsRunsOfRanksWithAnExchangeUnderWay) {
  // Exchange 1 needs its load, exchange 0 is under way when that fails on both ranks.
  const Schedule schedule{.tasks = {Exchange(LaneKind::kSend, {}, 0), OnLane(LaneKind::kLoad),
                                    Exchange(LaneKind::kReceive, {1}, 1), Compute({2}),
                                    Compute({0})}};
  comm::RunOnThreads(2, [&](comm::Group& group) {
    const RankProgram program(schedule, 0);
    Executor executor(/*background=*/true, {{0}});
    for (int run = 0; run < 10; ++run) {
      FunctionWork work(schedule);
      NumberExchange first(group);
      NumberExchange second(group);
      first.own = second.own = run;
      std::atomic<bool> exchanges = false;
      work.start = [&](TaskId id) {
        exchanges = true;
        return id == 0 ? first.Start(0) : second.Start(1);
      };
      const bool fails = run % 2 == 0;
      work.on_lane = [&](TaskId) -> Status {
        WaitUntil(exchanges);
        if (fails) return Error{"no page"};
        return {};
      };
      EXPECT_EQ(executor.Run(program, work).ok(), !fails);
      EXPECT_EQ(first.theirs, run);
      EXPECT_EQ(second.theirs, fails ? 0 : run);
      EXPECT_FALSE(executor.exchanging());
    }
  });
}

// Compute 0 and host task 1 at the same time, and load 2.
Schedule HostBeside() {
  return {.tasks = {Compute(), OnLane(LaneKind::kHost), OnLane(LaneKind::kLoad)}};
}

TEST(ExecutorLanes, TheHostLaneHasAPoolOnCoresOfItsOwn) {
  const std::vector<int> allowed = *hardware::CurrentAffinity();
  const std::vector<int> compute = {allowed.front()};
  const std::vector<int> host = {allowed.back(), allowed.front()};
  const Schedule schedule = HostBeside();
  const RankProgram program(schedule, 0);
  hardware::ThreadPool own(compute);
  Executor executor(/*background=*/true, {compute, host});
  for (int run = 0; run < 5; ++run) {
    FunctionWork work(schedule);
    std::barrier meeting(2 + 1);  // both pools are in a call
    work.compute = [&](TaskId) { own.Run([&](int) { meeting.arrive_and_wait(); }); };
    work.on_host = [&](hardware::ThreadPool* pool) {
      EXPECT_TRUE(pool != nullptr && pool->cpus() == host);
      pool->Run([&](int thread_idx) {
        meeting.arrive_and_wait();
        EXPECT_EQ(*hardware::CurrentAffinity(), std::vector{host[thread_idx]});
      });
      return Status();
    };
    work.on_lane = [&](TaskId) {
      EXPECT_EQ(*hardware::CurrentAffinity(), compute);
      return Status();
    };
    ASSERT_TRUE(executor.Run(program, work).ok());
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(ExecutorLanes, WithoutCoresOfItsOwnTheHostLaneRunsOnThoseOfCompute) {
  const std::vector<int> all = *hardware::CurrentAffinity();
  const Schedule schedule = HostBeside();
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/false, {all});
  FunctionWork work(schedule);
  work.on_host = [&](hardware::ThreadPool* pool) {
    EXPECT_EQ(pool, nullptr);
    EXPECT_EQ(*hardware::CurrentAffinity(), all);
    return Status();
  };
  ASSERT_TRUE(executor.Run(program, work).ok());
}

TEST(ExecutorLanesDeathTest, WorkWithoutLanesRefusesThem) {
  class OnlyComputes : public LaneWork {
    void Compute(const Task&) override {}
    std::unique_ptr<comm::Exchange> Start(const Task&) override { return nullptr; }
  };
  const Schedule schedule{.tasks = {OnLane(LaneKind::kLoad)}};
  EXPECT_DEATH(
      {
        const RankProgram program(schedule, 0);
        OnlyComputes work;
        Executor executor(/*background=*/false, {{0}});
        static_cast<void>(executor.Run(program, work));
      },
      "nothing runs on lane load: load_page");
}

}  // namespace
}  // namespace convene::runtime
