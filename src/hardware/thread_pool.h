// A fixed set of threads, one per core, that run one function together and then wait for the next.
// It is not a task queue: a call returns when all threads are done, and calls do not nest.
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
  // done; what they wrote is then visible to the caller. Called from one thread at a time, best the
  // constructing one, which is pinned; never from inside f (CHECK). f must not throw.
  template <typename F>
  void Run(F&& f) {
    using Function = std::remove_reference_t<F>;
    RunOnAll(
        [](const void* context, int thread_idx) { (*AsFunction<Function>(context))(thread_idx); },
        std::addressof(f));
  }

  // Calls f(index, thread_idx) once for each index in [0, count). Indices are handed out in
  // increasing order, `grain` at a time, to whichever thread is free. Rules as for Run. When one
  // grain holds them all, the caller runs them alone as thread 0.
  template <typename F>
  void ParallelFor(int64_t count, F&& f, int64_t grain = 1) {
    CHECK(grain >= 1, "grain {}", grain);
    CHECK(!busy_.load(std::memory_order_relaxed), "a parallel call inside another");
    if (count <= grain) {
      for (int64_t index = 0; index < count; ++index) f(index, 0);
      return;
    }
    next_index_.store(0, std::memory_order_relaxed);
    Run([&](int thread_idx) {
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

  template <typename Function>
  static Function* AsFunction(const void* context) {
    return static_cast<Function*>(const_cast<void*>(context));
  }

  void RunOnAll(Task task, const void* context);
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
