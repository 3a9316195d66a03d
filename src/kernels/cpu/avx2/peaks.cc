// Peak loops on 256-bit registers without bf16 and byte dot products. The instructions are written
// out, so that the compiler cannot fold them.
#include <immintrin.h>

#include "kernels/cpu/peak_loop.h"

namespace convene::kernels::avx2 {
namespace {

constexpr int kSums = 10;
constexpr int64_t kLanes = 8;  // sums of 32 bits in a register

struct Operands {
  __m256i a, b;
};

// The bit patterns are ordinary numbers of each format: clocks and power depend on them.
struct F32 {
  using Register = __m256i;
  static constexpr int64_t kOps = 2 * kLanes;
  static Operands Values() {
    return {_mm256_castps_si256(_mm256_set1_ps(1.25F)), _mm256_castps_si256(_mm256_set1_ps(0.7F))};
  }
  static void Dot(__m256i& sum, const Operands& operands) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(operands.a), "x"(operands.b));
  }
};

// bf16 as two halves, each made float: the rate of float32.
using Bf16 = F32;

// Bytes as 16 bits: a dot product of pairs and an addition.
struct Int8 {
  using Register = __m256i;
  static constexpr int64_t kOps = 2 * 2 * kLanes;
  static Operands Values() {
    return {_mm256_set1_epi32(0x0033000f), _mm256_set1_epi32(0x001d009b)};
  }
  static void Dot(__m256i& sum, const Operands& operands) {
    // One statement: of two the compiler keeps a single product for all sums.
    __m256i products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sum), "=&x"(products)
        : "x"(operands.a), "x"(operands.b));
  }
};

}  // namespace

PeakLoops Loops() {
  return {.f32 = cpu::kPeakLoop<F32, kSums>,
          .bf16 = cpu::kPeakLoop<Bf16, kSums>,
          .int8 = cpu::kPeakLoop<Int8, kSums>};
}

}  // namespace convene::kernels::avx2
