// The primitives of AVX-512 without BF16 and VNNI (Skylake-X and its kin), for the templates of
// kernels/cpu. Include only from sources compiled for this instruction set.
#pragma once

#include <limits>

#include "kernels/cpu/avx512_base.h"

namespace convene::kernels::avx512 {

struct Isa : cpu::Bf16AsFloats<cpu::Avx512Base<Isa>> {
  using Base = cpu::Bf16AsFloats<cpu::Avx512Base<Isa>>;
  static constexpr const char* kName = "avx512";
  static constexpr int kMostInt4DotRows = std::numeric_limits<int>::max();  // as in avx2/isa.h

  template <cpu::DotKind kKind>
  static constexpr bool kTakesApart = kKind != cpu::DotKind::kF32;
  template <cpu::DotKind kKind>
  static constexpr int kRegisterTiles =
      kTakesApart<kKind> ? cpu::kTilesTakenApart : Base::kRegisterTiles<kKind>;
  template <cpu::DotKind kKind>
  static __m512i LoadPart(const std::byte* from, int part) {
    if constexpr (kKind == cpu::DotKind::kBf16) {
      return Base::LoadPart<kKind>(from, part);
    } else {
      const __m512i both = _mm512_loadu_si512(from);
      return part == 0 ? _mm512_and_si512(both, _mm512_set1_epi16(0xff))
                       : _mm512_srli_epi16(both, 8);
    }
  }
  template <cpu::DotKind kKind>
  static Sums<kKind> DotPart(Sums<kKind> sum, __m512i a, __m512i w) {
    if constexpr (kKind == cpu::DotKind::kBf16) {
      return Base::DotPart<kKind>(sum, a, w);
    } else {
      return _mm512_add_epi32(sum, _mm512_madd_epi16(w, a));
    }
  }

  // What int4_dot.h needs, as in avx2/isa.h: two sums of 16 bits in each lane.
  static Int4Scales LoadInt4Scales(const std::byte* scales) {
    const Int4Scales once = Base::LoadInt4Scales(scales);
    return {_mm512_or_si512(once.magnitude, _mm512_slli_epi32(once.magnitude, 16)), once.negative};
  }
  static Ints BeginInt4Dot(const Int4Scales& scales, int32_t sum) {
    const auto lower = [](int32_t value) { return _mm512_set1_epi32(value & 0xffff); };
    return _mm512_mask_blend_epi32(scales.negative, lower(-kInt4Zero * sum),
                                   lower((1 - kInt4Zero) * sum));
  }
  static Ints DotBytes(Ints sum, Ints weights, const std::byte* activations) {
    const __m512i a = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(activations));
    // Written out as in avx2/isa.h.
    __m512i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
        : "+v"(sum), "=&v"(products)
        : "v"(weights), "v"(a));
    return sum;
  }
  static Ints DotWords(Ints sum, Ints a, const Int4Scales& scales) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, scales.magnitude));
  }
};

}  // namespace convene::kernels::avx512
