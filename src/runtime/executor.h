// Executes a rank's lanes of a schedule: computation on the calling thread, exchanges beside it,
// each task when its lane is free and what it waits for is done; and records when. What a task does
// is the caller's matter (LaneWork).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace convene::runtime {

// A rank's part of a schedule, in the order of its lanes. Keeps a reference to the schedule.
class RankProgram {
 public:
  // A rank waits for tasks of its own only (CHECK); what ranks wait for each other are collectives.
  RankProgram(const schedule::Schedule& schedule, int rank);

  const schedule::Task& task(schedule::TaskId id) const { return schedule_.tasks[id]; }
  int num_tasks() const { return static_cast<int>(schedule_.tasks.size()); }
  const std::vector<schedule::TaskId>& compute() const { return compute_; }
  const std::vector<std::vector<schedule::TaskId>>& exchange_lanes() const { return exchanges_; }

 private:
  const schedule::Schedule& schedule_;
  std::vector<schedule::TaskId> compute_;
  std::vector<std::vector<schedule::TaskId>> exchanges_;  // of each lane that has any
};

class LaneWork {
 public:
  virtual ~LaneWork() = default;
  virtual void Compute(const schedule::Task& task) = 0;
  // Null where there is nothing to exchange. May be called from another thread than Compute, at the
  // same time as it; what the tasks before it did is visible.
  virtual std::unique_ptr<comm::Exchange> Start(const schedule::Task& task) = 0;
};

class Executor {
 public:
  // `background`: whether exchanges go on while the calling thread computes. `cpus`: of the thread
  // that sees to that, started when first needed.
  Executor(bool background, std::vector<int> cpus)
      : background_(background), cpus_(std::move(cpus)) {}
  ~Executor();

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Returns when all tasks are done. `beside`: whether there is anything to compute beside an
  // exchange; otherwise the thread that would see to it only disturbs.
  void Run(const RankProgram& program, LaneWork& work, bool beside = true);

  // Of the last run: tasks of this rank.
  const schedule::Timeline& timeline() const { return timeline_; }

  std::chrono::steady_clock::time_point start() const { return start_; }

  // While the calling thread computes: whether an exchange is under way beside it.
  bool exchanging() const { return num_active_.load(std::memory_order_relaxed) > 0; }

 private:
  struct ExchangeLane {
    const std::vector<schedule::TaskId>* tasks = nullptr;
    size_t next = 0;
    std::unique_ptr<comm::Exchange> active = {};
  };
  using Clock = std::chrono::steady_clock;

  bool IsReady(schedule::TaskId id) const;
  void Await(schedule::TaskId id);
  void AwaitExchanges();
  // Advances exchanges and starts those that can be; whether anything has changed. With mutex_.
  bool Progress();
  bool TryProgress();
  void Begin(schedule::TaskId id) { timeline_.tasks[id].start = Now(); }
  void Finish(schedule::TaskId id);
  double Now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void BackgroundLoop();

  bool background_;
  std::vector<int> cpus_;
  const RankProgram* program_ = nullptr;  // of the current run, as all below
  LaneWork* work_ = nullptr;
  Clock::time_point start_;
  schedule::Timeline timeline_;
  std::vector<std::atomic<uint8_t>> done_;  // by TaskId
  std::vector<ExchangeLane> lanes_;
  std::atomic<int> num_active_{0};

  std::mutex mutex_;  // of everything that exchanges
  std::condition_variable wake_;
  bool running_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace convene::runtime
