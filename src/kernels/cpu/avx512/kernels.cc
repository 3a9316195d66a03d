#include "kernels/cpu/avx512/kernels.h"

#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/kernels.h"

namespace convene::kernels::avx512 {

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels = cpu::MakeKernels<Isa>();
  return kKernels;
}

}  // namespace convene::kernels::avx512
