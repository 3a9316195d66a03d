// Rows of activations with the even and the odd elements of each step taken apart, for instruction
// sets that multiply them one after the other (tile.h). Include only from sources compiled for AVX2
// or more.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/tile.h"

namespace convene::kernels::cpu {

// Of each step of 4 bytes 4 bytes with the even elements, then 4 with the odd ones: bf16 as floats,
// bytes as pairs of 16 bits. `steps` is a multiple of 4. Inlined everywhere, so that no version for
// one instruction set is what the linker keeps for all.
template <DotKind kKind>
[[gnu::always_inline]] inline void SpreadStepsOfRow(const void* row, int64_t steps,
                                                    std::byte* out) {
  const auto* from = static_cast<const std::byte*>(row);
  for (int64_t step = 0; step < steps; step += 4) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * step));
    __m256i halves;
    if constexpr (kKind == DotKind::kBf16) {
      halves = _mm256_slli_epi32(_mm256_cvtepu16_epi32(four), 16);
    } else {
      const __m256i even_first =
          _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
      halves = _mm256_shuffle_epi8(_mm256_cvtepi8_epi16(four), even_first);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * step), halves);
  }
}

}  // namespace convene::kernels::cpu
