// How fast a directory's disk delivers what is read of it: large pieces with their checksums, as
// pages of weights are, and requests of many sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "hardware/measure_rate.h"
#include "hardware/thread_pool.h"

namespace convene::hardware {

struct DiskRate {
  Rate read;            // bytes per second
  bool direct = false;  // past the page cache (O_DIRECT); otherwise memory may have answered
  uint64_t file_bytes = 0;
  // While all threads of a pool computed; 0: there was none.
  double beside_bytes_per_second = 0;
  double core_seconds_per_byte = 0;  // that reading took from them
};

// Reads pieces of 8 MiB all over a file with several requests in flight, into 128 MiB of memory, or
// `most_memory_bytes` if that is less (but at least 8 MiB), and computes their digests, one at a
// time: what a run that reads experts gets of the disk. The file is the largest one without holes
// directly in `directory` (an existing one), if one has 256 MiB. Otherwise writes a file of random
// bytes there, reads that and gives it back. It has no name meanwhile, so that nothing stays behind
// whatever happens. Writing and reading take about `budget_s` each; the file has at most
// `max_file_bytes`, at most half of the free space, and at least 16 MiB. With `computing`, which
// then is not in use, reading goes on for as long again while its threads compute. Errors: too
// little space (says how much is needed), the directory cannot be written, a read fails.
Result<DiskRate> MeasureDiskRead(const std::string& directory, uint64_t max_file_bytes,
                                 double budget_s, ThreadPool* computing = nullptr,
                                 uint64_t most_memory_bytes = UINT64_MAX);

// Reads of so many bytes at places all over a file, so many of them in flight.
struct DiskPoint {
  uint64_t request_bytes = 0;
  int depth = 1;
  double seconds = 0;  // of all of them together, by request
};

struct DiskRequests {
  std::vector<DiskPoint> points;  // sizes from 4 KiB to 4 MiB, depths from 1 to 16
  bool direct = false;            // as DiskRate's
};

// Like MeasureDiskRead, with a file of up to 256 MiB; reading takes about `budget_s`. Errors: as
// there.
Result<DiskRequests> MeasureDiskRequests(const std::string& directory, double budget_s);

}  // namespace convene::hardware
