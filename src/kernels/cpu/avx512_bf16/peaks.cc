// Peak loops on 512-bit registers: that of the bf16 dot product, beside those that do without it.
#include <immintrin.h>

#include "kernels/cpu/peak_loop.h"

namespace convene::kernels::avx512_bf16 {
namespace {

constexpr int kSums = 16;
constexpr int64_t kLanes = 16;  // sums of 32 bits in a register

struct Operands {
  __m512i a, b;
};

// The bit patterns are ordinary numbers of each format: clocks and power depend on them.
struct Bf16 {
  using Register = __m512i;
  static constexpr int64_t kOps = 2 * 2 * kLanes;  // pairs of bf16
  static Operands Values() {
    return {_mm512_set1_epi32(0x3fa03f80), _mm512_set1_epi32(0x3f333fc0)};
  }
  static void Dot(__m512i& sum, const Operands& operands) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(operands.a), "v"(operands.b));
  }
};

}  // namespace

PeakLoops Loops() {
  PeakLoops loops = avx512_vnni::Loops();
  loops.bf16 = cpu::kPeakLoop<Bf16, kSums>;
  return loops;
}

}  // namespace convene::kernels::avx512_bf16
