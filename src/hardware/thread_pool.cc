#include "hardware/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <set>
#include <utility>

#include "base/start_thread.h"
#include "hardware/affinity.h"

namespace convene::hardware {
namespace {

// Between two calls of one step a worker should be found awake: an empty Run then takes 0.11 us,
// and 33 us where a worker sleeps (2 threads on an EPYC 9004 under KVM, probe of 2026-11-21).
constexpr int64_t kSpinNs = 100'000;
// With more threads than CPUs a spinning thread holds up the one it waits for.
constexpr int64_t kOversubscribedSpinNs = 1'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns the first value of `counter` for which `done` holds: spins, then sleeps between changes.
template <typename T, typename Done>
T AwaitValue(const std::atomic<T>& counter, int64_t spin_ns, Done done) {
  const int64_t deadline_ns = NowNs() + spin_ns;
  do {
    for (int i = 0; i < 64; ++i) {
      const T value = counter.load(std::memory_order_acquire);
      if (done(value)) return value;
      Pause();
    }
  } while (NowNs() < deadline_ns);
  for (;;) {
    const T value = counter.load(std::memory_order_acquire);
    if (done(value)) return value;
    counter.wait(value, std::memory_order_acquire);
  }
}

}  // namespace

ThreadPool::ThreadPool(std::vector<int> cpus) : cpus_(std::move(cpus)) {
  CHECK(!cpus_.empty(), "a pool needs at least one thread");
  const std::set<int> distinct(cpus_.begin(), cpus_.end());
  spin_ns_ = distinct.size() < cpus_.size() ? kOversubscribedSpinNs : kSpinNs;
  if (Result<std::vector<int>> mask = CurrentAffinity()) saved_mask_ = *std::move(mask);
  num_running_ = size() - 1;
  for (int thread_idx = 1; thread_idx < size() && started_; ++thread_idx) {
    Result<std::jthread> worker =
        StartThread(fmt::format("thread {} of {}", thread_idx + 1, size()),
                    [this, thread_idx] { WorkerLoop(thread_idx); });
    if (worker) {
      workers_.push_back(*std::move(worker));
    } else {
      started_ = worker.error();
    }
  }
  const auto num_threads = static_cast<int>(workers_.size()) + 1;
  num_running_ -= size() - num_threads;
  if (SetAffinity({cpus_[0]})) ++num_pinned_;
  AwaitWorkers();
  cpus_.resize(static_cast<size_t>(num_threads));
}

ThreadPool::~ThreadPool() {
  task_ = nullptr;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::jthread& worker : workers_) worker.join();
  // A mask that has become invalid meanwhile leaves the thread where it is.
  if (!saved_mask_.empty()) static_cast<void>(SetAffinity(saved_mask_).ok());
}

void ThreadPool::RunTask(Task task, const void* context) {
  if (workers_.empty()) return task(context, 0);
  task_ = task;
  context_ = context;
  num_running_.store(size() - 1, std::memory_order_relaxed);
  // Sequentially consistent, as wait and notify need: a worker either sees the new epoch before it
  // sleeps or is seen sleeping here.
  epoch_.fetch_add(1);
  epoch_.notify_all();
  task(context, 0);
  AwaitWorkers();
}

void ThreadPool::AwaitWorkers() {
  AwaitValue(num_running_, spin_ns_, [](int32_t num_running) { return num_running == 0; });
}

void ThreadPool::WorkerLoop(int thread_idx) {
  pthread_setname_np(pthread_self(), fmt::format("convene-{}", thread_idx).c_str());
  if (SetAffinity({cpus_[static_cast<size_t>(thread_idx)]})) ++num_pinned_;
  uint32_t seen_epoch = 0;
  for (;;) {
    if (num_running_.fetch_sub(1) == 1) num_running_.notify_one();
    seen_epoch = AwaitValue(epoch_, spin_ns_, [&](uint32_t epoch) { return epoch != seen_epoch; });
    if (task_ == nullptr) return;
    task_(context_, thread_idx);
  }
}

}  // namespace convene::hardware
