// How fast a GPU computes, reads its own memory and exchanges bytes with its host. Host code
// without CUDA's headers: cuda/ has the kernels, without_cuda/ stands in where CUDA was not found.
#pragma once

#include "base/result.h"
#include "hardware/gpu.h"
#include "hardware/profile.h"
#include "hardware/thread_pool.h"

namespace convene::hardware {

// Each rate for about a quarter of `budget_s`, as medians of many passes; needs up to 5 GiB of the
// GPU's memory and 2 GiB of the host's, less where less is free. Threads of `pool` copy what is
// staged. Nobody else should use GPU or host meanwhile. Errors: of CanCompute; no memory; of CUDA.
Result<GpuProfile> MeasureGpu(const Gpu& gpu, ThreadPool& pool, double budget_s);

}  // namespace convene::hardware
