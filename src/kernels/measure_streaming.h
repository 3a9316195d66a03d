// Which way of asking memory for panels (panel_streaming.h) is the fastest on this machine.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "kernels/streaming_choice.h"

namespace convene::kernels {

// Times all ways in turn on invented experts that are read from memory, in each format and with
// each number of rows, for about `budget_s` in all, and chooses the fastest where it is faster by 2
// % at least than what CPUs of this kind get without a measurement. The weights of a product are
// `weight_bytes`, which should be more than caches hold: however short the time is, each way reads
// them three times. Precondition: they hold a panel of 2,048 floats deep, 512 KiB (CHECKed). Error:
// no memory to measure with.
Result<StreamingChoice> MeasureStreaming(hardware::ThreadPool& pool, const KernelSet& kernels,
                                         double budget_s, size_t weight_bytes);

}  // namespace convene::kernels
