// The loop that all instruction sets' peaks are measured with: nothing but a format's dot products,
// in registers. A format has Register (its type), kOps, Values() and Dot().
#pragma once

#include "kernels/peak_loops.h"

namespace convene::kernels::cpu {

// `kSums`: at least latency (4 to 6 cycles) times instructions per cycle (1 or 2) sums must be
// under way, and all must fit the registers.
template <typename Format, int kSums>
void RunPeakLoop(int64_t num_rounds) {
  const auto operands = Format::Values();
  // Only with every loop over them unrolled do the sums live in registers.
  typename Format::Register sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = typename Format::Register{};
  for (int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) Format::Dot(sums[i], operands);
  }
  // The compiler must believe that the sums are of use.
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "v"(sums[i]));
}

template <typename Format, int kSums>
constexpr PeakLoop kPeakLoop = {RunPeakLoop<Format, kSums>, kSums* Format::kOps};

}  // namespace convene::kernels::cpu
