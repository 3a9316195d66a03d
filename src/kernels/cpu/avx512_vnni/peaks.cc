// Peak loops on 512-bit registers: that of the integer dot product, beside those without it. The
// instructions are written out, since g++ 12 spills the sums around the intrinsic of the integer
// dot product.
#include <immintrin.h>

#include "kernels/cpu/peak_loop.h"

namespace convene::kernels::avx512_vnni {
namespace {

constexpr int kSums = 16;
constexpr int64_t kLanes = 16;  // sums of 32 bits in a register

struct Operands {
  __m512i a, b;
};

// The bit patterns are ordinary numbers of each format: clocks and power depend on them.
struct Int8 {
  using Register = __m512i;
  static constexpr int64_t kOps = 2 * 4 * kLanes;  // quadruples of bytes
  static Operands Values() {
    return {_mm512_set1_epi32(0x7f33550f), _mm512_set1_epi32(0x1da1449b)};
  }
  static void Dot(__m512i& sum, const Operands& operands) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(operands.a), "v"(operands.b));
  }
};

}  // namespace

PeakLoops Loops() {
  PeakLoops loops = avx512::Loops();
  loops.int8 = cpu::kPeakLoop<Int8, kSums>;
  return loops;
}

}  // namespace convene::kernels::avx512_vnni
