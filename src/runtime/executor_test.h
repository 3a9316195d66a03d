// What tests of the executor share: tasks in one line, and work that calls functions.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/executor.h"

namespace convene::runtime {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::Task;
using schedule::TaskId;
using enum schedule::TaskKind;

inline Task Compute(std::vector<TaskId> after = {}, int rank = 0) {
  return {.kind = kAttention, .lane = {rank, LaneKind::kCompute}, .after = std::move(after)};
}

inline Task Exchange(LaneKind lane, std::vector<TaskId> after, int collective) {
  return {.kind = lane == LaneKind::kSend ? kDispatch : kCombine,
          .lane = {0, lane},
          .after = std::move(after),
          .collective = collective};
}

// Of a lane with a thread of its own.
inline Task OnLane(LaneKind lane, std::vector<TaskId> after = {}) {
  return {.kind = kLoadPage, .lane = {0, lane}, .after = std::move(after)};
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

  Status RunOnLane(const Task& task, hardware::ThreadPool* pool) override {
    Note(task);
    if (task.lane.kind == LaneKind::kHost && on_host) return on_host(pool);
    return on_lane ? on_lane(IdOf(task)) : Status();
  }

  void Discard(const Task& task) override { discarded.push_back(IdOf(task)); }

  std::function<void(TaskId)> compute;
  std::function<std::unique_ptr<comm::Exchange>(TaskId)> start;
  std::function<Status(TaskId)> on_lane;
  std::function<Status(hardware::ThreadPool*)> on_host;  // in place of on_lane
  std::vector<TaskId> discarded;

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
inline void ExpectInOrder(const Schedule& schedule, const schedule::Timeline& timeline, int rank) {
  ASSERT_EQ(timeline.tasks.size(), schedule.tasks.size());
  double last_end[schedule::kNumLaneKinds] = {};
  for (const LaneKind ahead : {LaneKind::kLoad, LaneKind::kStage}) {
    last_end[static_cast<int>(ahead)] = -1e9;
  }
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

}  // namespace convene::runtime
