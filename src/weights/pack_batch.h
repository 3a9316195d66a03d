// Packs matrices whose sources and targets are known, with all threads. Which ones, and in which
// order, is for those who load (load_weights.h) or write (pack_directory.h).
#pragma once

#include <span>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "weights/pack_jobs.h"

namespace convene::weights {

// Fills the jobs' targets, whose data must be writable. Error: what was packed is not finite.
Status PackBatch(std::span<const PackJob* const> batch, hardware::ThreadPool& pool);

// Lets go of the pages of the checkpoint's files that the job has read: from this process, or from
// the page cache, too.
void DropSources(const PackJob& job);
void EvictSources(const PackJob& job);

}  // namespace convene::weights
