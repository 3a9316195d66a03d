// How many operations per second the threads of a pool reach in dot products of each format, with
// all operands in registers: the machine's peaks. Not the speed of any kernel.
#pragma once

#include "hardware/isa.h"
#include "hardware/measure_rate.h"
#include "hardware/thread_pool.h"
#include "kernels/activation_row.h"

namespace convene::kernels {

// Operations per second of all threads together; a multiplication and an addition count as two.
struct DotPeaks {
  hardware::Rate f32;
  hardware::Rate bf16;
  hardware::Rate int8;
};

// One format's peak with the instructions of `isa`, which this machine must support. Runs all
// threads of `pool` for about `budget_s`, in passes of a millisecond or two.
hardware::Rate MeasureDotPeak(hardware::ThreadPool& pool, hardware::Isa isa,
                              ActivationFormat format, double budget_s);

// All formats, a third of `budget_s` each.
DotPeaks MeasureDotPeaks(hardware::ThreadPool& pool, hardware::Isa isa, double budget_s);

}  // namespace convene::kernels
