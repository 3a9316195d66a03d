// Load lanes between steps: what of the next program they do ahead, and what becomes of it when
// that runs, when another one does, and when it fails.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/executor_test.h"

namespace convene::runtime {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

void WaitUntilPrefetched(const std::atomic<int>& count, int value) {
  while (count < value) std::this_thread::yield();
}

// Two pages are staged and loaded ahead; the next one only after computation 4. Nothing but the
// load and stage lanes is ahead, whatever it waits for.
Schedule Pages() {
  return {.tasks = {OnLane(LaneKind::kStage), OnLane(LaneKind::kStage),
                    OnLane(LaneKind::kLoad, {0}), OnLane(LaneKind::kLoad, {1}), Compute({2, 3}),
                    OnLane(LaneKind::kLoad, {4}), OnLane(LaneKind::kHost), Compute({5})}};
}

// Counts what of the lanes is done.
struct CountingWork : FunctionWork {
  explicit CountingWork(const Schedule& schedule) : FunctionWork(schedule) {}
  Status RunOnLane(const Task& task, hardware::ThreadPool* pool) override {
    const Status status = FunctionWork::RunOnLane(task, pool);
    ++num_ended;
    return status;
  }
  std::atomic<int> num_ended = 0;
};

TEST(ExecutorPrefetch, FirstPagesOfTheNextStepComeBeforeItIsRun) {
  const Schedule schedule = Pages();
  const RankProgram program(schedule, 0);
  for (const bool background : {false, true}) {
    CountingWork work(schedule);
    Executor executor(background, {{0}});
    for (int step = 0; step < 20; ++step) {
      work.num_ended = 0;
      const schedule::Timeline last = executor.timeline();
      executor.Prefetch(program, work);
      executor.Prefetch(program, work);  // it is under way
      if (step % 2 == 0) {
        WaitUntilPrefetched(work.num_ended, 4);  // or some of it while the step runs
        EXPECT_EQ(std::ssize(work.begun()), 8 * step + 4);
      }
      EXPECT_EQ(executor.timeline().tasks.size(), last.tasks.size());
      ASSERT_TRUE(executor.Run(program, work).ok());
      EXPECT_EQ(std::ssize(work.begun()), 8 * (step + 1));
      ExpectInOrder(schedule, executor.timeline(), 0);
      const auto& times = executor.timeline().tasks;
      if (step % 2 == 0) {
        EXPECT_LT(times[2].start, 0) << "ahead of the step";
      }
      EXPECT_GE(times[4].start, 0);
    }
    EXPECT_THAT(work.discarded, IsEmpty());
  }
}

TEST(ExecutorPrefetch, TheStepTakesUpALoadThatIsUnderWay) {
  const Schedule schedule{
      .tasks = {OnLane(LaneKind::kLoad), Compute(), Compute({0}), OnLane(LaneKind::kLoad)}};
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/true, {{0}});
  std::atomic<int> num_computed = 0;
  work.on_lane = [&](TaskId id) {
    if (id == 0) WaitUntilPrefetched(num_computed, 1);  // it ends only once the step has begun
    return Status();
  };
  work.compute = [&](TaskId) { ++num_computed; };
  executor.Prefetch(program, work);
  ASSERT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(num_computed, 2);
  ExpectInOrder(schedule, executor.timeline(), 0);
}

TEST(ExecutorPrefetch, ExchangesGetWhatWasLoadedAhead) {
  const Schedule schedule{.tasks = {OnLane(LaneKind::kLoad), Exchange(LaneKind::kSend, {0}, 0),
                                    OnLane(LaneKind::kLoad, {1}), Compute({2})}};
  const RankProgram program(schedule, 0);
  for (const bool background : {false, true}) {
    CountingWork work(schedule);
    Executor executor(background, {{0}});
    executor.Prefetch(program, work);
    WaitUntilPrefetched(work.num_ended, 1);
    EXPECT_THAT(work.begun(), ElementsAre(0));
    ASSERT_TRUE(executor.Run(program, work).ok());
    EXPECT_THAT(work.begun(), ElementsAre(0, 1, 2, 3));
  }
}

TEST(ExecutorPrefetch, AnErrorEndsTheNextRunAndTheOneAfterItWorks) {
  const Schedule schedule = Pages();
  const RankProgram program(schedule, 0);
  for (int round = 0; round < 10; ++round) {
    CountingWork work(schedule);
    Executor executor(/*background=*/true, {{0}});
    work.on_lane = [&](TaskId id) { return id == 2 ? Status(Error{"no page"}) : Status(); };
    executor.Prefetch(program, work);
    if (round % 2 == 0) WaitUntilPrefetched(work.num_ended, 2);
    const Status status = executor.Run(program, work);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, "load_page: no page");
    EXPECT_THAT(work.begun(), testing::Not(testing::Contains(4)));
    work.on_lane = {};
    executor.Prefetch(program, work);
    EXPECT_TRUE(executor.Run(program, work).ok());
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(ExecutorPrefetch, AnotherProgramDiscardsWhatWasDoneAhead) {
  const Schedule schedule = Pages();
  const Schedule another{.tasks = {Compute(), OnLane(LaneKind::kLoad)}};
  const RankProgram program(schedule, 0);
  const RankProgram other_program(another, 0);
  CountingWork work(schedule);
  FunctionWork other_work(another);
  Executor executor(/*background=*/true, {{0}});
  std::atomic<bool> is_slow = true;
  work.on_lane = [&](TaskId id) {
    // Most of the time under way when the other program comes: it is waited for. On a busy machine
    // it has ended, and the one behind it has begun.
    if (id == 2 && is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return Status();
  };
  executor.Prefetch(program, work);
  WaitUntilPrefetched(work.num_ended, 2);  // both are staged
  while (work.begun().size() < 3) std::this_thread::yield();
  ASSERT_TRUE(executor.Run(other_program, other_work).ok());
  const std::vector<TaskId> ahead = work.begun();
  const int64_t num_ahead = std::ssize(ahead);
  EXPECT_THAT(ahead, testing::IsSupersetOf({0, 1, 2}));
  EXPECT_THAT(work.discarded, testing::UnorderedElementsAreArray(ahead));
  EXPECT_THAT(other_work.discarded, IsEmpty());
  EXPECT_EQ(std::ssize(other_work.begun()), 2);
  ExpectInOrder(another, executor.timeline(), 0);

  is_slow = false;
  ASSERT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(std::ssize(work.begun()), num_ahead + 8) << "all of it again";
  // Of other work the same program is another step.
  executor.Prefetch(program, work);
  WaitUntilPrefetched(work.num_ended, static_cast<int>(num_ahead) + 6 + 4);
  CountingWork new_work(schedule);
  ASSERT_TRUE(executor.Run(program, new_work).ok());
  EXPECT_EQ(std::ssize(new_work.begun()), 8);
  EXPECT_EQ(std::ssize(work.discarded), num_ahead + 4);
}

TEST(ExecutorPrefetch, WhatFailedAheadOfAnotherProgramIsForgotten) {
  const Schedule schedule = Pages();
  const Schedule another{.tasks = {Compute()}};
  const RankProgram program(schedule, 0);
  const RankProgram other_program(another, 0);
  CountingWork work(schedule);
  FunctionWork other_work(another);
  Executor executor(/*background=*/false, {{0}});
  work.on_lane = [&](TaskId) { return Status(Error{"no page"}); };
  executor.Prefetch(program, work);
  WaitUntilPrefetched(work.num_ended, 1);
  EXPECT_TRUE(executor.Run(other_program, other_work).ok());
  EXPECT_THAT(work.discarded, IsEmpty());
}

TEST(ExecutorPrefetch, WhatWasDiscardedIsOverAndTheNextStepBeginsAnew) {
  const Schedule schedule = Pages();
  const RankProgram program(schedule, 0);
  CountingWork work(schedule);
  Executor executor(/*background=*/true, {{0}});
  executor.DiscardPrefetched();  // nothing
  for (int round = 0; round < 20; ++round) {
    const int before = work.num_ended;
    executor.Prefetch(program, work);
    if (round % 2 == 0) WaitUntilPrefetched(work.num_ended, before + 1);
    executor.DiscardPrefetched();
    const int ended = work.num_ended;
    EXPECT_EQ(std::ssize(work.begun()), ended) << "something is under way";
    EXPECT_EQ(std::ssize(work.discarded), ended);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(work.num_ended, ended);
  }
  const int before = work.num_ended;
  ASSERT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(work.num_ended, before + 6);
  ExpectInOrder(schedule, executor.timeline(), 0);
}

TEST(ExecutorPrefetch, TheExecutorMayEndMeanwhile) {
  const Schedule schedule = Pages();
  const RankProgram program(schedule, 0);
  for (int round = 0; round < 20; ++round) {
    CountingWork work(schedule);
    std::optional<Executor> executor;
    executor.emplace(/*background=*/true, hardware::LaneCpus{{0}});
    if (round % 2 == 0) {
      ASSERT_TRUE(executor->Run(program, work).ok());
    }
    const int before = work.num_ended;
    executor->Prefetch(program, work);
    // Most of the time it is under way; in others lane load sleeps until a computation that never
    // comes.
    if (round % 4 >= 2) WaitUntilPrefetched(work.num_ended, before + 4);
    executor.reset();
    EXPECT_EQ(std::ssize(work.discarded), work.num_ended - before);
  }
}

}  // namespace
}  // namespace convene::runtime
