#include "kernels/cpu/avx2/kernels.h"

#include "kernels/cpu/avx2/isa.h"
#include "kernels/cpu/kernels.h"

namespace convene::kernels::avx2 {

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels = cpu::MakeKernels<Isa>();
  return kKernels;
}

}  // namespace convene::kernels::avx2
