#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "memory/disk_queue.h"

namespace convene::memory {
namespace {

class UringQueue final : public DiskQueue {
 public:
  UringQueue(int descriptor, int depth) : descriptor_(descriptor), depth_(depth) {}
  ~UringQueue() override {
    if (is_ready_) io_uring_queue_exit(&ring_);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  Status Start() {
    const int failed = io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0);
    if (failed < 0) {
      return Unavailable(fmt::format("the system refuses io_uring ({})", std::strerror(-failed)));
    }
    is_ready_ = true;
    return {};
  }

  int depth() const override { return depth_; }
  std::string name() const override {
    return fmt::format("io_uring, {} requests at a time", depth_);
  }

  void Begin(const QueuedTransfer& transfer) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    CHECK(entry != nullptr, "more than {} at a time", depth_);
    if (transfer.is_write) {
      io_uring_prep_write(entry, descriptor_, transfer.target, transfer.size_bytes,
                          transfer.offset);
    } else {
      io_uring_prep_read(entry, descriptor_, transfer.target, transfer.size_bytes, transfer.offset);
    }
    entry->user_data = transfer.tag;
  }

  std::optional<FinishedTransfer> Wait(double patience_s) override {
    const auto seconds = static_cast<int64_t>(patience_s);
    __kernel_timespec patience{
        .tv_sec = seconds,
        .tv_nsec = static_cast<int64_t>((patience_s - static_cast<double>(seconds)) * 1e9)};
    io_uring_cqe* entry = nullptr;
    int failed = 0;
    do {
      // What was begun is handed over in the same call.
      failed = io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &patience, nullptr);
      if (failed >= 0 && entry == nullptr) failed = io_uring_peek_cqe(&ring_, &entry);
    } while (failed == -EINTR || failed == -EAGAIN || failed == -EBUSY);
    if (failed == -ETIME) return std::nullopt;
    CHECK(failed >= 0, "io_uring: {}", std::strerror(-failed));
    const FinishedTransfer finished{.tag = static_cast<uint32_t>(entry->user_data),
                                    .result = entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return finished;
  }

 private:
  int descriptor_;
  int depth_;
  bool is_ready_ = false;
  io_uring ring_ = {};
};

}  // namespace

Result<std::unique_ptr<DiskQueue>> MakeUringQueue(int descriptor, int depth) {
  auto queue = std::make_unique<UringQueue>(descriptor, depth);
  if (const Status started = queue->Start(); !started) return started.error();
  return std::unique_ptr<DiskQueue>(std::move(queue));
}

}  // namespace convene::memory
