// The kernels for AVX-512 without its dot products (Skylake-X).
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::avx512 {

const KernelSet& Kernels();

}  // namespace convene::kernels::avx512
