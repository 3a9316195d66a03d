#include "memory/disk_queue.h"

#include <fmt/format.h>

#include <utility>

namespace convene::memory {

Result<std::unique_ptr<DiskQueue>> MakeDiskQueue(int descriptor, const DiskQueueOptions& options,
                                                 std::string* why) {
  if (options.use_io_uring) {
    Result<std::unique_ptr<DiskQueue>> ring = MakeUringQueue(descriptor, options.depth);
    if (ring) return ring;
    *why += (why->empty() ? "" : ", and ") + ring.error().message;
  }
  return MakeThreadQueue(descriptor, options.threads);
}

std::string Describe(const DiskQueue& queue, bool is_direct, const std::string& why) {
  return fmt::format("{}, {} the page cache{}", queue.name(), is_direct ? "past" : "through",
                     why.empty() ? "" : ", because " + why);
}

}  // namespace convene::memory
