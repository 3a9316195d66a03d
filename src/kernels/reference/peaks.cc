// Peak loops of what any compiler makes of plain C++ for the baseline of the target.
#include <cstddef>

#include "kernels/peak_loops.h"

namespace convene::kernels::reference {
namespace {

// Independent sums: enough to hide the latency of an addition, few enough to stay in registers.
constexpr size_t kSums = 32;
constexpr int64_t kOpsPerRound = 2 * kSums;

// Makes the compiler believe that `values` are read and changed here.
template <typename T>
void Touch(T& values) {
  asm volatile("" : "+m"(values));
}

void RunF32(int64_t num_rounds) {
  float a[kSums], sums[kSums];
  for (size_t i = 0; i < kSums; ++i) {
    a[i] = 1 + 0.001F * static_cast<float>(i);
    sums[i] = 0;
  }
  float b = 1.5F;
  Touch(b);
  Touch(a);
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (size_t i = 0; i < kSums; ++i) sums[i] += a[i] * b;
    b = -b;  // else all rounds but one could be folded; keeps the sums small
  }
  Touch(sums);
}

float FromBf16(uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

void RunBf16(int64_t num_rounds) {
  uint16_t a[kSums];
  float sums[kSums];
  for (size_t i = 0; i < kSums; ++i) {
    a[i] = static_cast<uint16_t>(0x3f80 + i);
    sums[i] = 0;
  }
  float b = 1.5F;
  Touch(b);
  for (int64_t round = 0; round < num_rounds; ++round) {
    Touch(a);  // widened again each round, as a kernel must
    for (size_t i = 0; i < kSums; ++i) sums[i] += FromBf16(a[i]) * b;
    b = -b;
  }
  Touch(sums);
}

void RunInt8(int64_t num_rounds) {
  int8_t a[kSums], b[kSums];
  int32_t sums[kSums];
  for (size_t i = 0; i < kSums; ++i) {
    a[i] = static_cast<int8_t>(i);
    b[i] = static_cast<int8_t>(-3 * static_cast<int>(i));
    sums[i] = 0;
  }
  for (int64_t round = 0; round < num_rounds; ++round) {
    Touch(a);
    Touch(b);
    for (size_t i = 0; i < kSums; ++i) {
      const int product = a[i] * b[i];
      // Wraps around in the end, which only unsigned addition may.
      sums[i] =
          static_cast<int32_t>(static_cast<uint32_t>(sums[i]) + static_cast<uint32_t>(product));
    }
  }
  Touch(sums);
}

}  // namespace

PeakLoops Loops() {
  return {.f32 = {RunF32, kOpsPerRound},
          .bf16 = {RunBf16, kOpsPerRound},
          .int8 = {RunInt8, kOpsPerRound}};
}

}  // namespace convene::kernels::reference
