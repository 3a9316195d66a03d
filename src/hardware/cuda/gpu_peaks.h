// Kernels that do nothing but compute or read, to find out how fast a GPU can. They enqueue on the
// stream and return; `out` are 4 bytes of the device that nothing is written to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace convene::hardware {

// bf16 products with float32 sums by wgmma.m64n256k16, both operands in shared memory, by two
// groups of four warps on each multiprocessor. Returns the floating-point operations.
double EnqueueBf16Products(int num_multiprocessors, float* out, cudaStream_t stream);

// float32 multiply-adds on registers. Returns the floating-point operations.
double EnqueueF32MultiplyAdds(int num_multiprocessors, float* out, cudaStream_t stream);

// Reads the bytes, a multiple of 16, once each.
void EnqueueRead(int num_multiprocessors, const void* data, size_t size_bytes, float* out,
                 cudaStream_t stream);

void EnqueueNothing(cudaStream_t stream);

}  // namespace convene::hardware
