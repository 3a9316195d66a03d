// What keys and values on a disk have cost so far (spilled_kv.h).
#pragma once

#include <cstdint>

namespace convene::runtime {

struct SpillStatistics {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  double seconds = 0;  // in which the disk did that
};

}  // namespace convene::runtime
