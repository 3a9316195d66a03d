// The kernels for AMX beside AVX-512 (Sapphire Rapids and later).
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::amx {

const KernelSet& Kernels();

}  // namespace convene::kernels::amx
