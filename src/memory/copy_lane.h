// Copies between tiers of memory on a lane of their own, beside whatever computes there: memcpy
// where both tiers are the host's, a copy engine where one of them is a GPU's (device/device.h).
#pragma once

#include <cstddef>

#include "base/result.h"

namespace convene::memory {

// In the order in which they are asked for. One thread at a time.
class CopyLane {
 public:
  virtual ~CopyLane() = default;
  // From either memory to either; of the host's at full speed where it is pinned. It may go on
  // after the call.
  virtual void Copy(std::byte* to, const std::byte* from, size_t size_bytes) = 0;
  // Returns when all copies so far are through. Error: the first that failed since the last call.
  virtual Status Wait() = 0;
};

}  // namespace convene::memory
