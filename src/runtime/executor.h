// Executes a rank's lanes of a schedule: computation on the calling thread, exchanges beside it,
// every other lane (host, load, store, stage) on a thread of its own; each task when its lane is
// free and what it waits for is done; and records when. What a task does is the caller's matter
// (LaneWork).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "hardware/thread_pool.h"
#include "hardware/topology.h"
#include "runtime/lane_thread.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace convene::runtime {

// A rank's part of a schedule, in the order of its lanes. Keeps a reference to the schedule.
class RankProgram {
 public:
  // A lane that runs on a thread of its own.
  struct ThreadLane {
    schedule::LaneKind kind = schedule::LaneKind::kHost;
    std::vector<schedule::TaskId> tasks = {};
  };

  // CHECKs that the rank's tasks wait for its own tasks only, and that the send and receive lanes
  // hold nothing but collectives: only in them do ranks wait for each other.
  RankProgram(const schedule::Schedule& schedule, int rank);

  const schedule::Task& task(schedule::TaskId id) const { return schedule_.tasks[id]; }
  int num_tasks() const { return static_cast<int>(schedule_.tasks.size()); }
  const std::vector<schedule::TaskId>& compute() const { return compute_; }
  const std::vector<std::vector<schedule::TaskId>>& exchange_lanes() const { return exchanges_; }
  const std::vector<ThreadLane>& thread_lanes() const { return thread_lanes_; }
  // Whose threads may sleep until the task is done: bit i is LaneKind i. 0 where there are no
  // thread lanes.
  uint8_t waiters(schedule::TaskId id) const { return waiters_[id]; }

 private:
  void FindWaiters(int rank);

  const schedule::Schedule& schedule_;
  std::vector<schedule::TaskId> compute_;
  std::vector<std::vector<schedule::TaskId>> exchanges_;  // of each lane that has any
  std::vector<ThreadLane> thread_lanes_;                  // likewise
  std::vector<uint8_t> waiters_;                          // by TaskId
};

// What the tasks do. Calls come from several threads at the same time; each sees all that the tasks
// did for which its task has waited.
class LaneWork {
 public:
  virtual ~LaneWork() = default;
  // On the thread that calls Run.
  virtual void Compute(const schedule::Task& task) = 0;
  // Null where there is nothing to exchange. On any thread, one at a time.
  virtual std::unique_ptr<comm::Exchange> Start(const schedule::Task& task) = 0;
  // A task of the host, load, store or stage lane, on the lane's own thread; it may block. `pool`:
  // that of the host lane where it has cores of its own, null otherwise. An error ends the run. By
  // default there are no such tasks (CHECK).
  virtual Status RunOnLane(const schedule::Task& task, hardware::ThreadPool* pool);
  // A task that was done ahead (Executor::Prefetch) in vain, since its program does not come next.
  virtual void Discard(const schedule::Task& task) { static_cast<void>(task); }
};

class Executor {
 public:
  // `background`: whether exchanges go on while the calling thread computes. `cpus`: the host lane
  // has a pool on those of its own; the threads of other lanes, and the one that advances
  // exchanges, run anywhere on those of compute. They are started when first needed;
  // StartBackground starts the one for exchanges earlier.
  Executor(bool background, hardware::LaneCpus cpus)
      : background_(background), cpus_(std::move(cpus)) {}
  ~Executor();

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts the thread that advances exchanges, if `background` asks for it. Error: the system
  // refuses a thread.
  Status StartBackground();

  // Starts the load and stage lanes of the program that the next Run will most likely run, with the
  // same `work`, and returns at once: they do what waits for nothing but tasks of these two lanes,
  // while the caller samples, say. If another Run or Prefetch comes instead, the task under way on
  // each lane ends first and what was done is discarded (LaneWork::Discard), as by the destructor;
  // program and work live until then. An error is that of the next Run.
  void Prefetch(const RankProgram& next, LaneWork& work);
  // As if another program came: when it returns, no lane runs until the next Prefetch or Run.
  void DiscardPrefetched();

  // Returns when all tasks are done. `beside`: whether there is anything to compute beside an
  // exchange; otherwise the thread that would see to it only disturbs. Error: that of the first
  // RunOnLane that failed, or of a thread that could not be started. Nothing is begun after it,
  // what is under way ends first: exchanges too, so on several ranks the caller must end the job,
  // as their peers may wait for the next ones.
  Status Run(const RankProgram& program, LaneWork& work, bool beside = true);

  // The times of this rank's tasks in the last run, below 0 for what was done ahead of it; of a run
  // that failed, of those that were done. Prefetch leaves them as they are.
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

  // Of what the task waits for, one that is not done; -1: it can begin.
  schedule::TaskId MissingFor(schedule::TaskId id) const;
  // On the calling thread; false: a task has failed.
  bool Await(schedule::TaskId id);
  // Likewise, asleep all the time, on the thread of a lane.
  bool Sleep(schedule::LaneKind lane, schedule::TaskId id);
  // Starts those that are done ahead, or the others; each runs its tasks as far as it can.
  void StartLanes(bool ahead);
  void RunLane(const RankProgram::ThreadLane& lane, hardware::ThreadPool* pool);
  void Fail(schedule::TaskId id, const Error& error);
  void FailWith(const Error& error);
  // Nothing is begun after it.
  void Stop();
  bool has_failed() const { return failed_.load(); }
  void AwaitExchanges();
  // Advances exchanges and, unless a task has failed, starts those that can be; whether anything
  // has changed. With mutex_.
  bool Progress();
  bool TryProgress();
  void Begin(schedule::TaskId id) { times_.tasks[id].start = Now(); }
  void Finish(schedule::TaskId id);
  double Now() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }
  void BackgroundLoop();

  bool background_;
  hardware::LaneCpus cpus_;
  Clock::time_point start_;               // of the last run, as the next
  schedule::Timeline timeline_;           // swapped with times_ when it has ended
  bool prefetching_ = false;              // the current run has not begun, but its load lanes have
  const RankProgram* program_ = nullptr;  // of the current run, as all below
  LaneWork* work_ = nullptr;
  Clock::time_point origin_;  // of times_
  schedule::Timeline times_;
  std::vector<std::atomic<uint8_t>> done_;  // by TaskId
  std::vector<ExchangeLane> lanes_;
  std::atomic<int> num_active_{0};
  std::atomic<bool> failed_{false};
  Status status_;  // with mutex_

  std::mutex mutex_;  // of everything that exchanges
  std::condition_variable wake_;
  bool running_ = false;
  bool ending_ = false;
  std::jthread thread_;

  std::array<Sleeper, schedule::kNumLaneKinds> sleepers_;  // kCompute: the calling thread
  std::array<LaneThread, schedule::kNumLaneKinds> lane_threads_;
};

}  // namespace convene::runtime
