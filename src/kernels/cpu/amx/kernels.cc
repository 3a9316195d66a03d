#include "kernels/cpu/amx/kernels.h"

#include "kernels/cpu/amx/isa.h"
#include "kernels/cpu/kernels.h"

namespace convene::kernels::amx {

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels = cpu::MakeKernels<Isa>();
  return kKernels;
}

}  // namespace convene::kernels::amx
