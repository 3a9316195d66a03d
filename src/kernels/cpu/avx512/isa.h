// The primitives of AVX-512 without BF16 and VNNI (Skylake-X and its kin), for the templates of
// kernels/cpu. Include only from sources compiled for this instruction set.
#pragma once

#include "kernels/cpu/avx512_base.h"
#include "kernels/cpu/spread_steps.h"

namespace convene::kernels::avx512 {

struct Isa : cpu::Avx512Base<Isa> {
  static constexpr const char* kName = "avx512";
  static constexpr int kMostInt4DotRows = 0;
  static constexpr int kRegisterTiles = 2 * cpu::kTileRows;

  // Rounds to nearest even; NaN stays NaN.
  static __m256i Bf16Of(Floats value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
  static void StoreBf16(tensor::Bf16* to, Floats value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), Bf16Of(value));
  }
  static void StoreBf16Partial(tensor::Bf16* to, Floats value, int count) {
    _mm256_mask_storeu_epi16(to, Mask(count), Bf16Of(value));
  }

  template <cpu::DotKind>
  using Weights = __m512i;
  template <cpu::DotKind>
  static __m512i LoadWeights(const std::byte* from) {
    return _mm512_loadu_si512(from);
  }
  template <cpu::DotKind>
  static __m512i BroadcastStep(const void* row, int64_t step) {
    return _mm512_set1_epi32(static_cast<const int32_t*>(row)[step]);
  }
  template <cpu::DotKind>
  static Floats Dot(Floats sum, __m512i a, __m512i w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(w), sum);
  }

  // As in avx2/isa.h.
  template <cpu::DotKind kKind>
  static constexpr bool kTakesApart = kKind != cpu::DotKind::kF32;
  template <cpu::DotKind kKind>
  static __m512i LoadPart(const std::byte* from, int part) {
    const __m512i both = _mm512_loadu_si512(from);
    if constexpr (kKind == cpu::DotKind::kBf16) {
      return part == 0 ? _mm512_slli_epi32(both, 16)
                       : _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
    } else {
      return part == 0 ? _mm512_and_si512(both, _mm512_set1_epi16(0xff))
                       : _mm512_srli_epi16(both, 8);
    }
  }
  static __m512i BroadcastPart(const void* spread, int64_t index) {
    return _mm512_set1_epi32(static_cast<const int32_t*>(spread)[index]);
  }
  template <cpu::DotKind kKind>
  static Sums<kKind> DotPart(Sums<kKind> sum, __m512i a, __m512i w) {
    if constexpr (kKind == cpu::DotKind::kBf16) {
      return Dot<cpu::DotKind::kF32>(sum, a, w);
    } else {
      return _mm512_add_epi32(sum, _mm512_madd_epi16(w, a));
    }
  }
  template <cpu::DotKind kKind>
  static void SpreadSteps(const void* row, int64_t steps, std::byte* out) {
    cpu::SpreadStepsOfRow<kKind>(row, steps, out);
  }
};

}  // namespace convene::kernels::avx512
