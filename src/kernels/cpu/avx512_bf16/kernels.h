// The kernels for AVX-512 with the BF16 dot product (Zen 4, Cooper Lake, Sapphire Rapids and
// later).
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::avx512_bf16 {

const KernelSet& Kernels();

}  // namespace convene::kernels::avx512_bf16
