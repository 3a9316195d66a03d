#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/start_thread.h"
#include "memory/disk_queue.h"

namespace convene::memory {
namespace {

class ThreadQueue final : public DiskQueue {
 public:
  ThreadQueue(int descriptor, int depth) : descriptor_(descriptor), depth_(depth) {}
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    begun_.notify_all();
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  Status Start() {
    for (int i = 0; i < depth_; ++i) {
      Result<std::jthread> thread =
          StartThread(fmt::format("thread {} of {} that read and write a disk", i + 1, depth_),
                      [this] { Loop(); });
      if (!thread) return thread.error();
      threads_.push_back(*std::move(thread));
    }
    return {};
  }

  int depth() const override { return depth_; }
  std::string name() const override { return fmt::format("pread on {} threads", depth_); }

  void Begin(const QueuedTransfer& transfer) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(transfer);
    }
    begun_.notify_one();
  }

  std::optional<FinishedTransfer> Wait(double patience_s) override {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> patience(patience_s);
    if (!finished_.wait_for(lock, patience, [&] { return !done_.empty(); })) return std::nullopt;
    const FinishedTransfer finished = done_.front();
    done_.pop_front();
    return finished;
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      begun_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
      if (ending_) return;
      const QueuedTransfer next = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const auto offset = static_cast<off_t>(next.offset);
      const ssize_t count = next.is_write
                                ? pwrite(descriptor_, next.target, next.size_bytes, offset)
                                : pread(descriptor_, next.target, next.size_bytes, offset);
      const int64_t result = count < 0 ? -errno : count;
      lock.lock();
      done_.push_back({.tag = next.tag, .result = result});
      finished_.notify_one();
    }
  }

  int descriptor_;
  int depth_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable finished_;
  std::deque<QueuedTransfer> waiting_;  // with mutex_, as the next ones
  std::deque<FinishedTransfer> done_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // they end first
};

}  // namespace

Result<std::unique_ptr<DiskQueue>> MakeThreadQueue(int descriptor, int depth) {
  auto queue = std::make_unique<ThreadQueue>(descriptor, depth);
  if (const Status started = queue->Start(); !started) return started.error();
  return std::unique_ptr<DiskQueue>(std::move(queue));
}

}  // namespace convene::memory
