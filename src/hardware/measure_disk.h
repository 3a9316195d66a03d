// How fast a directory's disk delivers large sequential reads. It says nothing of files' own
// layout.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "hardware/measure_rate.h"

namespace convene::hardware {

struct DiskRate {
  Rate read;            // bytes per second
  bool direct = false;  // past the page cache (O_DIRECT); otherwise memory may have answered
  uint64_t file_bytes = 0;
};

// Writes a file of random bytes to `directory` (an existing one), reads it with several requests in
// flight and gives it back. It has no name meanwhile, so that nothing stays behind whatever
// happens. Writing and reading take about `budget_s` each; the file has at most `max_file_bytes`,
// at most half of the free space, and at least 16 MiB. Errors: too little space (says how much is
// needed), the directory cannot be written, a read fails.
Result<DiskRate> MeasureDiskRead(const std::string& directory, uint64_t max_file_bytes,
                                 double budget_s);

}  // namespace convene::hardware
