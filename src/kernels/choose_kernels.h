// The choice of a kernel set at run time: one row per instruction set. The kernels are the folders
// reference/ and cpu/.
#pragma once

#include <span>

#include "base/result.h"
#include "kernels/kernel_set.h"

namespace convene::kernels {

// The best set this machine can run, or the one CONVENE_ISA names. Errors as hardware::ChooseIsa.
Result<const KernelSet*> ChooseKernels();

// All sets that this machine can run, best first; the reference is the last.
std::span<const KernelSet* const> SupportedKernels();

}  // namespace convene::kernels
