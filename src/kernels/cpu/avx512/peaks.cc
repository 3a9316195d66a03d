// Peak loops on 512-bit registers without bf16 and byte dot products. The instructions are written
// out, so that the compiler cannot fold them.
#include <immintrin.h>

#include "kernels/peak_loops.h"

namespace convene::kernels::avx512 {
namespace {

// At least latency (4 to 6 cycles) times instructions per cycle (1 or 2) sums must be under way.
constexpr int kSums = 16;
constexpr int64_t kLanes = 16;  // sums of 32 bits in a register

struct Operands {
  __m512i a, b;
};

// The bit patterns are ordinary numbers of each format: clocks and power depend on them.
struct F32 {
  static constexpr int64_t kOps = 2 * kLanes;
  static Operands Values() {
    return {_mm512_castps_si512(_mm512_set1_ps(1.25F)), _mm512_castps_si512(_mm512_set1_ps(0.7F))};
  }
  static void Dot(__m512i& sum, const Operands& operands) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(operands.a), "v"(operands.b));
  }
};

// bf16 as two halves, each made float: the rate of float32.
using Bf16 = F32;

// Bytes as 16 bits: a dot product of pairs and an addition.
struct Int8 {
  static constexpr int64_t kOps = 2 * 2 * kLanes;
  static Operands Values() {
    return {_mm512_set1_epi32(0x0033000f), _mm512_set1_epi32(0x001d009b)};
  }
  static void Dot(__m512i& sum, const Operands& operands) {
    __m512i products;
    asm("vpmaddwd %2, %1, %0" : "=v"(products) : "v"(operands.a), "v"(operands.b));
    asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(products));
  }
};

template <typename Format>
void Run(int64_t num_rounds) {
  const Operands operands = Format::Values();
  // Only with every loop over them unrolled do the sums live in registers.
  __m512i sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_setzero_si512();
  for (int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) Format::Dot(sums[i], operands);
  }
  // The compiler must believe that the sums are of use.
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "v"(sums[i]));
}

template <typename Format>
constexpr PeakLoop kLoop = {Run<Format>, kSums* Format::kOps};

}  // namespace

PeakLoops Loops() { return {.f32 = kLoop<F32>, .bf16 = kLoop<Bf16>, .int8 = kLoop<Int8>}; }

}  // namespace convene::kernels::avx512
