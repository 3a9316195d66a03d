// A thread for one lane and how it sleeps until an event. What it runs and which events there are
// is executor.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "schedule/schedule.h"

namespace convene::runtime {

// Lets the calling thread run on any of `cpus`, not only on that of the thread that started it.
// Where the system refuses that, the thread stays where it is and works on, and one note per
// process says so: what should run beside computation then takes turns with it.
void SpreadOver(const std::vector<int>& cpus);

// Runs one function at a time on a thread of its own, which it starts with the first and keeps.
class LaneThread {
 public:
  // `pool`: that of the lane, whose first thread and only caller this one is; null: it has none.
  using Work = std::function<void(hardware::ThreadPool* pool)>;

  LaneThread() = default;
  ~LaneThread();
  LaneThread(const LaneThread&) = delete;
  LaneThread& operator=(const LaneThread&) = delete;

  // `cpus`: where the thread runs, and `with_pool` whether it has a pool there (its started() is
  // for the work to look at). Precondition: what was started before has been waited for. Error: the
  // system refuses a thread; the work is not begun.
  Status Start(const std::vector<int>& cpus, bool with_pool, Work work);
  void Wait();

 private:
  void Loop(hardware::ThreadPool* pool);

  std::mutex mutex_;
  std::condition_variable changed_;
  Work work_;  // until it is done
  bool ending_ = false;
  std::jthread thread_;
};

// Where one thread sleeps until a task is done. Those that finish tasks take a lock only if it
// sleeps for theirs.
class Sleeper {
 public:
  // Returns when `is_over()`, which is asked again after each Wake(id) and WakeForAny. It and what
  // makes it true must be sequentially consistent: either this thread sees the change, or who made
  // it sees this thread asleep.
  template <typename Predicate>
  void Sleep(schedule::TaskId id, Predicate is_over) {
    std::unique_lock lock(mutex_);
    awaited_.store(id);
    wake_.wait(lock, is_over);
    awaited_.store(kNone, std::memory_order_relaxed);
  }

  void Wake(schedule::TaskId id) {
    if (awaited_.load() == id) Notify();
  }
  void WakeForAny() {
    if (awaited_.load() != kNone) Notify();
  }

 private:
  static constexpr schedule::TaskId kNone = -1;

  void Notify() {
    // It has asked in vain and not slept yet, or it sleeps: not in between.
    { const std::lock_guard lock(mutex_); }
    wake_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<schedule::TaskId> awaited_{kNone};
};

}  // namespace convene::runtime
