#include "kernels/cpu/avx512_bf16/kernels.h"

#include "kernels/cpu/avx512_bf16/isa.h"
#include "kernels/cpu/kernels.h"

namespace convene::kernels::avx512_bf16 {

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels = cpu::MakeKernels<Isa>();
  return kKernels;
}

}  // namespace convene::kernels::avx512_bf16
