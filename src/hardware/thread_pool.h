// A fixed set of threads, one per core, that run one function together and then wait for the next.
// It is not a task queue: a call returns when all threads are done, and a pool has one caller at a
// time. Lanes that compute at the same time have a pool each, on cores of their own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace convene::hardware {

class ThreadPool {
 public:
  // One thread per entry of `cpus` (logical CPU numbers, at least one; the same one may occur
  // again). Thread 0 is the constructing thread itself: it is pinned to cpus[0] until the pool is
  // destroyed, and threads that it starts meanwhile inherit that mask. The other threads are
  // started here: where the system refuses one, the pool has those before it, and started() is an
  // error.
  explicit ThreadPool(std::vector<int> cpus);

  const Status& started() const { return started_; }

  // Joins the threads and gives the constructing thread its mask back. Must be the same thread.
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(cpus_.size()); }
  const std::vector<int>& cpus() const { return cpus_; }

  // Threads that the system let us pin: size() unless the affinity mask has shrunk meanwhile.
  int num_pinned() const { return num_pinned_.load(std::memory_order_relaxed); }

  // Calls f(thread_idx) once on each thread, thread_idx in [0, size()), and returns when all are
  // done; what they wrote is then visible to the caller. Called best from the constructing thread,
  // which is pinned. CHECKs that no other call is under way, of another thread or around this one.
  // f must not throw.
  template <typename F>
  void Run(F&& f) {
    const Call call(busy_);
    RunOnAll(f);
  }

  // Calls f(index, thread_idx) once for each index in [0, count). Indices are handed out in
  // increasing order, `grain` at a time, to whichever thread is free. Rules as for Run. When one
  // grain holds them all, the caller runs them alone as thread 0.
  template <typename F>
  void ParallelFor(int64_t count, F&& f, int64_t grain = 1) {
    CHECK(grain >= 1, "grain {}", grain);
    const Call call(busy_);
    if (count <= grain) {
      for (int64_t index = 0; index < count; ++index) f(index, 0);
      return;
    }
    next_index_.store(0, std::memory_order_relaxed);
    RunOnAll([&](int thread_idx) {
      for (;;) {
        const int64_t begin = next_index_.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        const int64_t end = std::min(begin + grain, count);
        for (int64_t index = begin; index < end; ++index) f(index, thread_idx);
      }
    });
  }

 private:
  using Task = void (*)(const void* context, int thread_idx);

  // A caller, from when it has the pool to itself until its call returns.
  class Call {
   public:
    explicit Call(std::atomic<bool>& busy) : busy_(busy) {
      CHECK(!busy_.exchange(true, std::memory_order_acquire),
            "a second parallel call while one is under way: a thread pool has one caller at a "
            "time, and calls do not nest");
    }
    ~Call() { busy_.store(false, std::memory_order_release); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  template <typename F>
  void RunOnAll(F&& f) {
    using Function = std::remove_reference_t<F>;
    RunTask(
        [](const void* context, int thread_idx) {
          (*static_cast<Function*>(const_cast<void*>(context)))(thread_idx);
        },
        std::addressof(f));
  }
  void RunTask(Task task, const void* context);
  void AwaitWorkers();
  void WorkerLoop(int thread_idx);

  // The caller writes the task, then advances epoch_; each worker runs it and counts num_running_
  // down (also once after its start). The counters that all threads hammer are a cache line each.
  std::vector<int> cpus_;
  std::vector<std::jthread> workers_;
  Status started_;
  std::vector<int> saved_mask_;  // of the constructing thread
  std::atomic<int> num_pinned_{0};
  int64_t spin_ns_ = 0;
  Task task_ = nullptr;  // null tells the workers to end
  const void* context_ = nullptr;
  std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int32_t> num_running_{0};
  alignas(64) std::atomic<int64_t> next_index_{0};
};

}  // namespace convene::hardware
