// From how many rows per expert on it is faster to compute expert after expert with all threads
// (GemmOrder::kDense) than all experts in one region. Both give the same bits.
#pragma once

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"

namespace convene::kernels {

// Times both orders in turn on invented int8 experts, for 1 to 256 rows each, for about `budget_s`.
// Returns the least number of rows from which on dense was faster by 2 % at least; 0: it never was.
// Error: no memory to measure with.
Result<int> MeasureDenseFromRows(hardware::ThreadPool& pool, const KernelSet& kernels,
                                 double budget_s);

}  // namespace convene::kernels
