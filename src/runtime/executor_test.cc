#include "runtime/executor_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

namespace convene::runtime {
namespace {

TEST(Executor, RunsNothing) {
  const Schedule schedule;
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/true, {{0}});
  EXPECT_TRUE(executor.Run(program, work).ok());
  EXPECT_TRUE(executor.timeline().tasks.empty());
  EXPECT_FALSE(executor.exchanging());
}

TEST(Executor, RunsALaneInItsOrder) {
  const Schedule schedule{.tasks = {Compute(), Compute(), Compute({0}), Compute()}};
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/true, {{0}});
  EXPECT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(work.begun(), (std::vector<TaskId>{0, 1, 2, 3}));
  ExpectInOrder(schedule, executor.timeline(), 0);
}

TEST(Executor, RunsOnlyWhatIsOfItsRank) {
  const Schedule schedule{.num_ranks = 2, .tasks = {Compute({}, 0), Compute({}, 1), Compute()}};
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/false, {{0}});
  EXPECT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(work.begun(), (std::vector<TaskId>{0, 2}));
  ExpectInOrder(schedule, executor.timeline(), 0);
}

// Task 1 is an exchange, task 2 computes beside it, task 3 waits for it.
Schedule OneExchangeBeside() {
  return {
      .tasks = {Compute(), Exchange(LaneKind::kSend, {0}, 0), Compute(), Compute({1}), Compute()}};
}

TEST(Executor, ExchangesGoOnWhileItComputes) {
  const Schedule schedule = OneExchangeBeside();
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 20; ++run) {
    FunctionWork work(schedule);
    std::atomic<bool> is_done = false;
    std::atomic<bool> was_exchanging = false;
    work.start = [&](TaskId) {
      return std::make_unique<CountedExchange>(3, [&](bool done) {
        was_exchanging = executor.exchanging();
        is_done = done;
      });
    };
    // It would never return if nobody else looked after the exchange.
    work.compute = [&](TaskId id) {
      while (id == 2 && !is_done) std::this_thread::yield();
      EXPECT_TRUE(id != 3 || is_done);
    };
    EXPECT_TRUE(executor.Run(program, work).ok());
    EXPECT_TRUE(was_exchanging);
    EXPECT_FALSE(executor.exchanging());
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

// A control group or another program may take CPUs away after the start.
TEST(Executor, ExchangesGoOnBesideComputationWhereTheSystemRefusesTheCpus) {
  constexpr int kNoSuchCpu = 60000;
  const Schedule schedule = OneExchangeBeside();
  const RankProgram program(schedule, 0);
  testing::internal::CaptureStderr();
  for (int time = 0; time < 3; ++time) {
    Executor executor(/*background=*/true, {{kNoSuchCpu}});
    FunctionWork work(schedule);
    std::atomic<bool> is_done = false;
    work.start = [&](TaskId) {
      return std::make_unique<CountedExchange>(3, [&](bool done) { is_done = done; });
    };
    // Only another thread than this one can complete it.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    work.compute = [&](TaskId id) {
      while (id == 2 && !is_done && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(id < 2 || is_done) << id;
    };
    EXPECT_TRUE(executor.Run(program, work).ok());
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("exchanges go on"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(Executor, WithoutBackgroundOneThreadDoesEverything) {
  const Schedule schedule = OneExchangeBeside();
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/false, {{0}});
  FunctionWork work(schedule);
  const std::thread::id here = std::this_thread::get_id();
  int num_looks = 0;
  work.start = [&](TaskId) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    return std::make_unique<CountedExchange>(5, [&](bool) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      ++num_looks;
    });
  };
  EXPECT_TRUE(executor.Run(program, work).ok());
  EXPECT_EQ(num_looks, 5);
  ExpectInOrder(schedule, executor.timeline(), 0);
}

TEST(Executor, ExchangesOfOneLaneComeOneAfterTheOther) {
  // Two on the send lane, one on the receive lane that waits for the second, and a last computation
  // that nobody waits for.
  const Schedule schedule{.tasks = {Exchange(LaneKind::kSend, {}, 0),
                                    Exchange(LaneKind::kSend, {}, 1),
                                    Exchange(LaneKind::kReceive, {1}, 2), Compute()}};
  const RankProgram program(schedule, 0);
  for (const bool background : {false, true}) {
    Executor executor(background, {{0}});
    FunctionWork work(schedule);
    std::vector<TaskId> done;  // one thread at a time
    work.start = [&](TaskId id) {
      return std::make_unique<CountedExchange>(4, [&, id](bool is_done) {
        if (is_done) done.push_back(id);
      });
    };
    EXPECT_TRUE(executor.Run(program, work).ok());
    EXPECT_EQ(done, (std::vector<TaskId>{0, 1, 2}));
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(Executor, WhereNothingIsExchangedTasksFollowAtOnce) {
  const Schedule schedule = OneExchangeBeside();
  const RankProgram program(schedule, 0);
  for (const bool background : {false, true}) {
    Executor executor(background, {{0}});
    FunctionWork work(schedule);  // every exchange is null
    for (int run = 0; run < 50; ++run) EXPECT_TRUE(executor.Run(program, work).ok());
    EXPECT_EQ(work.begun().size(), 50 * schedule.tasks.size());
    EXPECT_FALSE(executor.exchanging());
  }
}

TEST(Executor, RunsSchedulesOfDifferentLengths) {
  const Schedule longer = OneExchangeBeside();
  const Schedule shorter{.tasks = {Compute()}};
  const RankProgram long_program(longer, 0);
  const RankProgram short_program(shorter, 0);
  Executor executor(/*background=*/true, {{0}});
  for (int run = 0; run < 20; ++run) {
    FunctionWork long_work(longer);
    EXPECT_TRUE(executor.Run(long_program, long_work).ok());
    ExpectInOrder(longer, executor.timeline(), 0);
    FunctionWork short_work(shorter);
    EXPECT_TRUE(executor.Run(short_program, short_work).ok());
    ExpectInOrder(shorter, executor.timeline(), 0);
  }
}

TEST(RankProgramDeathTest, HoldsWhatARankCanRunAlone) {
  const Schedule of_another{.num_ranks = 2, .tasks = {Compute({}, 1), Compute({0}, 0)}};
  EXPECT_DEATH(RankProgram(of_another, 0), "task 1 waits for another rank");
  const Schedule sends{.tasks = {{.kind = kSendQkv, .lane = {0, LaneKind::kSend}}}};
  EXPECT_DEATH(RankProgram(sends, 0), "task 0 is no exchange");
  const Schedule gathers{
      .tasks = {{.kind = kGatherRows, .lane = {0, LaneKind::kLoad}, .collective = 0}}};
  EXPECT_DEATH(RankProgram(gathers, 0), "task 0 is an exchange on lane load");
}

}  // namespace
}  // namespace convene::runtime
