#include "runtime/lane_thread.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/start_thread.h"
#include "hardware/affinity.h"

namespace convene::runtime {

void SpreadOver(const std::vector<int>& cpus) {
  const Status placed = hardware::SetAffinity(cpus);
  if (placed) return;
  static std::once_flag is_told;
  std::call_once(is_told, [&] {
    PrintNote(
        "note: {}; exchanges go on, but on the core of the first thread, whose computation they "
        "slow down\n",
        placed.error().message);
  });
}

LaneThread::~LaneThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status LaneThread::Start(const std::vector<int>& cpus, bool with_pool, Work work) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(!work_, "a lane's thread is still at work");
    work_ = std::move(work);
  }
  if (!thread_.joinable()) {
    Result<std::jthread> thread = StartThread("the thread of a lane", [this, cpus, with_pool] {
      std::optional<hardware::ThreadPool> pool;
      if (with_pool) {
        pool.emplace(cpus);
      } else {
        SpreadOver(cpus);
      }
      Loop(pool ? &*pool : nullptr);
    });
    if (!thread) {
      work_ = nullptr;
      return thread.error();
    }
    thread_ = *std::move(thread);
  }
  changed_.notify_all();
  return {};
}

void LaneThread::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !work_; });
}

void LaneThread::Loop(hardware::ThreadPool* pool) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return work_ || ending_; });
    if (ending_) return;
    lock.unlock();
    work_(pool);  // nobody else touches it until it is cleared
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace convene::runtime
