// Packs matrices whose sources and targets are known, with all threads, of which little is in
// memory at a time. Which ones, and in which order, is for those who load (load_weights.h) or write
// (pack_directory.h).
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/pack_jobs.h"

namespace convene::weights {

class BatchPacker {
 public:
  // Reserves in `ledger`, as staging, what sources of any of these jobs take at a time: each thread
  // has about 1 MiB of mapped files, and matrices that are stored transposed go through a buffer of
  // 32 MiB at most, which is smaller where there is little memory. Of what is mapped no more is
  // reserved than there is: the rest is small by itself, as the program is. Error: no memory for
  // the buffer.
  static Result<BatchPacker> Create(std::span<const PackJob* const> jobs,
                                    hardware::ThreadPool& pool, memory::Ledger& ledger);

  // Fills the targets of some of the jobs, whose data must be writable. Pages of the checkpoint's
  // files are dropped from this process behind it. Error: what was packed is not finite.
  Status Pack(std::span<const PackJob* const> batch);

 private:
  explicit BatchPacker(hardware::ThreadPool& pool) : pool_(&pool) {}

  Status PackDirectly(std::span<const PackJob* const> jobs);
  Status PackGathered(const PackJob& job);

  hardware::ThreadPool* pool_;
  memory::Reservation mapped_;
  memory::Reservation gathered_;
};

// Takes what the job has read of the checkpoint's files from the page cache, too.
void EvictSources(const PackJob& job);

}  // namespace convene::weights
