// Reads and writes of one file that are under way at the same time, by io_uring or by threads that
// wait for one of them each. What is read, and what is done about errors, is page_reader.h; what is
// written, spill_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"

namespace convene::memory {

struct QueuedTransfer {
  uint64_t offset = 0;  // in the file
  uint32_t size_bytes = 0;
  std::byte* target = nullptr;  // of a write: where the bytes come from
  uint32_t tag = 0;             // comes back when it is done
  bool is_write = false;
};

struct FinishedTransfer {
  uint32_t tag = 0;
  int64_t result = 0;  // bytes that were read or written, or a negative errno
};

// One thread uses it at a time.
class DiskQueue {
 public:
  virtual ~DiskQueue() = default;
  // At most depth() of them may be under way (CHECKed by who uses it).
  virtual int depth() const = 0;
  virtual std::string name() const = 0;  // "io_uring, 32 requests at a time"
  // Any number of Begin, then Wait. What is begun is under way at the latest once Wait is called.
  virtual void Begin(const QueuedTransfer& transfer) = 0;
  // The next one that is done; nothing, if none is within so many seconds. Precondition: one is
  // under way.
  virtual std::optional<FinishedTransfer> Wait(double patience_s) = 0;
};

// Errors: the kernel refuses io_uring (a container's filter, an old kernel), or convene was built
// without liburing; the message ends "because ...".
Result<std::unique_ptr<DiskQueue>> MakeUringQueue(int descriptor, int depth);

// With as many threads. Error: the system refuses them.
Result<std::unique_ptr<DiskQueue>> MakeThreadQueue(int descriptor, int depth);

struct DiskQueueOptions {
  int depth = 0;             // with io_uring
  int threads = 0;           // where that is refused
  bool use_io_uring = true;  // false: as where it is refused
};
// io_uring if it can be had; otherwise threads, and the reason is added to `why`. Error: the system
// refuses threads.
Result<std::unique_ptr<DiskQueue>> MakeDiskQueue(int descriptor, const DiskQueueOptions& options,
                                                 std::string* why);

// "io_uring, 32 requests at a time, past the page cache", and `why` not where that is not so.
std::string Describe(const DiskQueue& queue, bool is_direct, const std::string& why);

}  // namespace convene::memory
