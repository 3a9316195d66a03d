// The kernels for AVX-512 with the VNNI dot products and without that of BF16 (Cascade Lake, Ice
// Lake, Rocket Lake).
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::avx512_vnni {

const KernelSet& Kernels();

}  // namespace convene::kernels::avx512_vnni
