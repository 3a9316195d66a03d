// Peak loops on 512-bit registers. The instructions are written out, since g++ 12 spills the sums
// around the intrinsic of the integer dot product.
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
struct F32 {
  using Register = __m512i;
  static constexpr int64_t kOps = 2 * kLanes;
  static Operands Values() {
    return {_mm512_castps_si512(_mm512_set1_ps(1.25F)), _mm512_castps_si512(_mm512_set1_ps(0.7F))};
  }
  static void Dot(__m512i& sum, const Operands& operands) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(operands.a), "v"(operands.b));
  }
};

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
  return {.f32 = cpu::kPeakLoop<F32, kSums>,
          .bf16 = cpu::kPeakLoop<Bf16, kSums>,
          .int8 = cpu::kPeakLoop<Int8, kSums>};
}

}  // namespace convene::kernels::avx512_bf16
