// A thread that does pieces of work one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/result.h"
#include "base/start_thread.h"

namespace convene::server {

class WorkQueue {
 public:
  ~WorkQueue() { Stop(); }

  Status Start(std::string_view purpose) {
    Result<std::jthread> thread = StartThread(purpose, [this] { Run(); });
    if (!thread) return thread.error();
    thread_ = *std::move(thread);
    return {};
  }

  void Push(std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_one();
  }

  // Waits for the piece that is being done; the others are dropped.
  void Stop() {
    {
      const std::scoped_lock lock(mutex_);
      is_stopped_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !work_.empty() || is_stopped_; });
      if (is_stopped_) return;
      const std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      next();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool is_stopped_ = false;
  std::jthread thread_;
};

}  // namespace convene::server
