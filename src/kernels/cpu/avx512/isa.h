// The primitives of AVX-512 without BF16 and VNNI (Skylake-X and its kin), for the templates of
// kernels/cpu. Include only from sources compiled for this instruction set.
#pragma once

#include "kernels/cpu/avx512_base.h"

namespace convene::kernels::avx512 {

struct Isa : cpu::Avx512Base<Isa> {
  static constexpr const char* kName = "avx512";
  static constexpr int kMostInt4DotRows = 0;
  // Weights and activations taken in halves want registers of their own.
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

  // The even and the odd elements of a step apart: bf16 as floats, bytes in 16 bits.
  struct Halves {
    __m512i even, odd;
  };
  template <cpu::DotKind kKind>
  using Weights = std::conditional_t<kKind == cpu::DotKind::kF32, __m512i, Halves>;

  template <cpu::DotKind kKind>
  static Weights<kKind> LoadWeights(const std::byte* from) {
    const __m512i both = _mm512_loadu_si512(from);
    if constexpr (kKind == cpu::DotKind::kF32) {
      return both;
    } else if constexpr (kKind == cpu::DotKind::kBf16) {
      return FloatHalves(both);
    } else {  // unsigned
      return {_mm512_and_si512(both, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(both, 8)};
    }
  }
  template <cpu::DotKind kKind>
  static Weights<kKind> BroadcastStep(const void* row, int64_t step) {
    const __m512i both = _mm512_set1_epi32(static_cast<const int32_t*>(row)[step]);
    if constexpr (kKind == cpu::DotKind::kF32) {
      return both;
    } else if constexpr (kKind == cpu::DotKind::kBf16) {
      return FloatHalves(both);
    } else {  // signed
      return {_mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8), _mm512_srai_epi16(both, 8)};
    }
  }
  template <cpu::DotKind kKind>
  static Sums<kKind> Dot(Sums<kKind> sum, const Weights<kKind>& a, const Weights<kKind>& w) {
    if constexpr (kKind == cpu::DotKind::kF32) {
      return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(w), sum);
    } else if constexpr (kKind == cpu::DotKind::kBf16) {
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(a.even), _mm512_castsi512_ps(w.even), sum);
      return _mm512_fmadd_ps(_mm512_castsi512_ps(a.odd), _mm512_castsi512_ps(w.odd), sum);
    } else {
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a.even, w.even));
      return _mm512_add_epi32(sum, _mm512_madd_epi16(a.odd, w.odd));
    }
  }

 private:
  static Halves FloatHalves(__m512i pairs) {
    return {_mm512_slli_epi32(pairs, 16),
            _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000)))};
  }
};

}  // namespace convene::kernels::avx512
