// What all kernels of NVIDIA GPUs have in common, without CUDA's headers: pointers are to the
// device's memory unless they are called `host`, matrices lie row by row, and a function enqueues
// its work on a stream and returns.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace convene::kernels::cuda {

using StreamHandle = CUstream_st*;  // cudaStream_t

// The bits of a bf16 number, as host code sees it.
using Bf16 = uint16_t;

}  // namespace convene::kernels::cuda
