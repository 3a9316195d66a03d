#include "memory/disk_queue.h"

namespace convene::memory {

Result<std::unique_ptr<DiskQueue>> MakeUringQueue(int, int) {
  return Unavailable("this program was built without liburing");
}

}  // namespace convene::memory
