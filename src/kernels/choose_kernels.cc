#include "kernels/choose_kernels.h"

#include <vector>

#include "hardware/isa.h"
#include "kernels/cpu/amx/kernels.h"
#include "kernels/cpu/avx2/kernels.h"
#include "kernels/cpu/avx512/kernels.h"
#include "kernels/cpu/avx512_bf16/kernels.h"
#include "kernels/cpu/avx512_vnni/kernels.h"
#include "kernels/reference/kernels.h"

namespace convene::kernels {
namespace {

// One row per instruction set; hardware::IsaCandidates gives the order and the reasons.
const KernelSet* KernelsFor(hardware::Isa isa) {
  switch (isa) {
    case hardware::Isa::kAmx:
      return &amx::Kernels();
    case hardware::Isa::kAvx512Bf16:
      return &avx512_bf16::Kernels();
    case hardware::Isa::kAvx512Vnni:
      return &avx512_vnni::Kernels();
    case hardware::Isa::kAvx512:
      return &avx512::Kernels();
    case hardware::Isa::kAvx2:
      return &avx2::Kernels();
    case hardware::Isa::kReference:
      return &reference::Kernels();
  }
  return nullptr;
}

}  // namespace

Result<const KernelSet*> ChooseKernels() {
  const Result<hardware::Isa> isa = hardware::ChooseIsa();
  if (!isa) return isa.error();
  return KernelsFor(*isa);
}

std::span<const KernelSet* const> SupportedKernels() {
  static const std::vector<const KernelSet*> supported = [] {
    std::vector<const KernelSet*> list;
    for (const hardware::IsaCandidate& candidate : hardware::IsaCandidates()) {
      if (candidate.missing().empty()) list.push_back(KernelsFor(candidate.isa));
    }
    return list;
  }();
  return supported;
}

}  // namespace convene::kernels
