// From how many rows per expert on it is faster to compute expert after expert with all threads
// (GemmOrder::kDense) than all experts in one region. Both give the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "kernels/timed_rounds.h"

namespace convene::kernels {

// Times both orders in turn on invented int8 experts, for 1 to 256 rows each, for about `budget_s`.
// Returns the least number of rows from which on dense was faster by 2 % at least, and in three of
// four rounds; 0: it never was. `weights`, aligned to 64 bytes, are read 64 MiB at a time: in all
// several times what the caches hold, and a panel of 2,048 bytes deep, 128 KiB (CHECKed); none of
// them may be a denormal number. Error: no memory to measure with.
Result<int> MeasureDenseFromRows(hardware::ThreadPool& pool, const KernelSet& kernels,
                                 double budget_s, std::span<const std::byte> weights,
                                 SecondsNow now = SteadySeconds);

}  // namespace convene::kernels
