// The kernels for AVX2 with FMA (Haswell, Zen and later).
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::avx2 {

const KernelSet& Kernels();

}  // namespace convene::kernels::avx2
