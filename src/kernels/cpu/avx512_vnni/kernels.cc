#include "kernels/cpu/avx512_vnni/kernels.h"

#include "kernels/cpu/avx512_vnni/isa.h"
#include "kernels/cpu/kernels.h"

namespace convene::kernels::avx512_vnni {

const KernelSet& Kernels() {
  static constexpr KernelSet kKernels = cpu::MakeKernels<Isa>();
  return kKernels;
}

}  // namespace convene::kernels::avx512_vnni
