#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace convene::runtime {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::Task;
using schedule::TaskId;
using enum schedule::TaskKind;

Task Compute(std::vector<TaskId> after = {}, int rank = 0) {
  return {.kind = kAttention, .lane = {rank, LaneKind::kCompute}, .after = std::move(after)};
}

Task Exchange(LaneKind lane, std::vector<TaskId> after, int collective) {
  return {.kind = lane == LaneKind::kSend ? kDispatch : kCombine,
          .lane = {0, lane},
          .after = std::move(after),
          .collective = collective};
}

// Complete when asked for the n-th time.
class CountedExchange : public comm::Exchange {
 public:
  CountedExchange(int looks, std::function<void(bool done)> when_looked)
      : looks_(looks), when_looked_(std::move(when_looked)) {}

  bool Test() override {
    --looks_;
    when_looked_(looks_ <= 0);
    return looks_ <= 0;
  }

 private:
  int looks_;
  std::function<void(bool done)> when_looked_;
};

// Calls functions, and notes what was begun in which order.
class FunctionWork : public LaneWork {
 public:
  explicit FunctionWork(const Schedule& schedule) : schedule_(schedule) {}

  void Compute(const Task& task) override {
    Note(task);
    if (compute) compute(IdOf(task));
  }
  std::unique_ptr<comm::Exchange> Start(const Task& task) override {
    Note(task);
    return start ? start(IdOf(task)) : nullptr;
  }

  std::function<void(TaskId)> compute;
  std::function<std::unique_ptr<comm::Exchange>(TaskId)> start;

  std::vector<TaskId> begun() {
    const std::scoped_lock lock(mutex_);
    return begun_;
  }

 private:
  TaskId IdOf(const Task& task) const {
    return static_cast<TaskId>(&task - schedule_.tasks.data());
  }
  void Note(const Task& task) {
    const std::scoped_lock lock(mutex_);
    begun_.push_back(IdOf(task));
  }

  const Schedule& schedule_;
  std::mutex mutex_;
  std::vector<TaskId> begun_;
};

// What must hold of every run, whatever took how long.
void ExpectInOrder(const Schedule& schedule, const schedule::Timeline& timeline, int rank) {
  ASSERT_EQ(timeline.tasks.size(), schedule.tasks.size());
  double last_end[schedule::kNumLaneKinds] = {};
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    const schedule::TaskTime& time = timeline.tasks[id];
    if (task.lane.rank != rank) {
      EXPECT_EQ(time.end, schedule::TaskTime{}.end) << "of another rank";
      continue;
    }
    double& before = last_end[static_cast<int>(task.lane.kind)];
    EXPECT_GE(time.start, before) << "task " << id << " on its lane";
    EXPECT_GE(time.end, time.start);
    for (const TaskId waited_for : task.after) {
      EXPECT_GE(time.start, timeline.tasks[waited_for].end) << id << " after " << waited_for;
    }
    before = time.end;
  }
}

TEST(Executor, RunsNothing) {
  const Schedule schedule;
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/true, {0});
  executor.Run(program, work);
  EXPECT_TRUE(executor.timeline().tasks.empty());
  EXPECT_FALSE(executor.exchanging());
}

TEST(Executor, RunsALaneInItsOrder) {
  const Schedule schedule{.tasks = {Compute(), Compute(), Compute({0}), Compute()}};
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/true, {0});
  executor.Run(program, work);
  EXPECT_EQ(work.begun(), (std::vector<TaskId>{0, 1, 2, 3}));
  ExpectInOrder(schedule, executor.timeline(), 0);
}

TEST(Executor, RunsOnlyWhatIsOfItsRank) {
  const Schedule schedule{.num_ranks = 2, .tasks = {Compute({}, 0), Compute({}, 1), Compute()}};
  const RankProgram program(schedule, 0);
  FunctionWork work(schedule);
  Executor executor(/*background=*/false, {0});
  executor.Run(program, work);
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
  Executor executor(/*background=*/true, {0});
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
    executor.Run(program, work);
    EXPECT_TRUE(was_exchanging);
    EXPECT_FALSE(executor.exchanging());
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(Executor, WithoutBackgroundOneThreadDoesEverything) {
  const Schedule schedule = OneExchangeBeside();
  const RankProgram program(schedule, 0);
  Executor executor(/*background=*/false, {0});
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
  executor.Run(program, work);
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
    Executor executor(background, {0});
    FunctionWork work(schedule);
    std::vector<TaskId> done;  // one thread at a time
    work.start = [&](TaskId id) {
      return std::make_unique<CountedExchange>(4, [&, id](bool is_done) {
        if (is_done) done.push_back(id);
      });
    };
    executor.Run(program, work);
    EXPECT_EQ(done, (std::vector<TaskId>{0, 1, 2}));
    ExpectInOrder(schedule, executor.timeline(), 0);
  }
}

TEST(Executor, WhereNothingIsExchangedTasksFollowAtOnce) {
  const Schedule schedule = OneExchangeBeside();
  const RankProgram program(schedule, 0);
  for (const bool background : {false, true}) {
    Executor executor(background, {0});
    FunctionWork work(schedule);  // every exchange is null
    for (int run = 0; run < 50; ++run) executor.Run(program, work);
    EXPECT_EQ(work.begun().size(), 50 * schedule.tasks.size());
    EXPECT_FALSE(executor.exchanging());
  }
}

TEST(Executor, RunsSchedulesOfDifferentLengths) {
  const Schedule longer = OneExchangeBeside();
  const Schedule shorter{.tasks = {Compute()}};
  const RankProgram long_program(longer, 0);
  const RankProgram short_program(shorter, 0);
  Executor executor(/*background=*/true, {0});
  for (int run = 0; run < 20; ++run) {
    FunctionWork long_work(longer);
    executor.Run(long_program, long_work);
    ExpectInOrder(longer, executor.timeline(), 0);
    FunctionWork short_work(shorter);
    executor.Run(short_program, short_work);
    ExpectInOrder(shorter, executor.timeline(), 0);
  }
}

TEST(RankProgramDeathTest, HoldsWhatARankCanRunAlone) {
  const Schedule of_another{.num_ranks = 2, .tasks = {Compute({}, 1), Compute({0}, 0)}};
  EXPECT_DEATH(RankProgram(of_another, 0), "task 1 waits for another rank");
  const Schedule copies{.tasks = {{.kind = kLoadPage, .lane = {0, LaneKind::kLoad}, .after = {}}}};
  EXPECT_DEATH(RankProgram(copies, 0), "task 0 is no exchange");
}

}  // namespace
}  // namespace convene::runtime
