// How fast the threads of a pool together read memory. Not the caches: give it more than they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/result.h"
#include "hardware/huge_buffer.h"
#include "hardware/measure_rate.h"
#include "hardware/thread_pool.h"

namespace convene::hardware {

// Bytes per second at which all threads of `pool` read `memory` (64-byte aligned), sequentially and
// in short passes that walk through it, for about `budget_s`. Measures the machine only if `memory`
// is several times the last-level cache and has been written: the weights of a model, or the
// buffer below.
Rate MeasureReadBandwidth(ThreadPool& pool, std::span<const std::byte> memory, double budget_s);

// How much memory to measure with: 1 GiB, or more for many threads or large caches
// (`last_level_cache_bytes`, 0 if unknown), but at most a quarter of `available_bytes`.
size_t BytesForBandwidth(int num_threads, uint64_t last_level_cache_bytes,
                         uint64_t available_bytes);

// As much memory as BytesForBandwidth says of what this process can have now, or `most_bytes`
// where that is less, written once. Errors:
// those of HugeBuffer::Allocate; less than a huge page can be had.
Result<HugeBuffer> AllocateForBandwidth(ThreadPool& pool, uint64_t last_level_cache_bytes,
                                        uint64_t most_bytes = std::numeric_limits<uint64_t>::max());

}  // namespace convene::hardware
