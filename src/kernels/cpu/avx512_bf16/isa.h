// The primitives of AVX-512 with the BF16 and VNNI dot products, for the templates of kernels/cpu.
// Include only from sources compiled for this instruction set.
#pragma once

#include "kernels/cpu/avx512_base.h"

namespace convene::kernels::avx512_bf16 {

template <class Tag>
struct Avx512DotBase : cpu::Avx512Base<Tag> {
  using Base = cpu::Avx512Base<Tag>;
  using Floats = typename Base::Floats;
  using Ints = typename Base::Ints;
  // int4 weights are multiplied without unpacking for so many rows (measured:
  // docs/results/int_gemm.md).
  static constexpr int kMostInt4DotRows = 8;

  static void StoreBf16(tensor::Bf16* to, Floats value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }
  static void StoreBf16Partial(tensor::Bf16* to, Floats value, int count) {
    _mm256_mask_storeu_epi16(to, Base::Mask(count),
                             reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }

  // One step of a GEMM: 4 bytes of each activation row against 64 bytes (16 packed rows) of
  // weights.
  template <cpu::DotKind>
  using Weights = __m512i;
  template <cpu::DotKind>
  static __m512i LoadWeights(const std::byte* from) {
    return _mm512_loadu_si512(from);
  }
  // Written out, since compilers make one load of two.
  static constexpr bool kLoadsHalfLines = true;
  static __m512i LoadHalfLines(const std::byte* from) {
    __m512i line;
    asm("vmovdqu64 %1, %t0\n\tvinserti64x4 $1, %2, %g0, %g0"
        : "=&v"(line)
        : "m"(*reinterpret_cast<const __m256i*>(from)),
          "m"(*reinterpret_cast<const __m256i*>(from + 32)));
    return line;
  }
  template <cpu::DotKind>
  static __m512i BroadcastStep(const void* row, int64_t step) {
    return _mm512_set1_epi32(static_cast<const int32_t*>(row)[step]);
  }
  // Written out for bytes: g++ 12 spills the sums around the intrinsic (352 against 804 Gop/s).
  template <cpu::DotKind kKind>
  static typename Base::template Sums<kKind> Dot(typename Base::template Sums<kKind> sum, __m512i a,
                                                 __m512i w) {
    if constexpr (kKind == cpu::DotKind::kInt8) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
      return sum;
    } else if constexpr (kKind == cpu::DotKind::kBf16) {
      return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
    } else {
      return _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(w), sum);
    }
  }

  // What int4_dot.h needs.
  struct Int4Scales {
    Ints magnitude;
    __mmask16 negative;  // rows whose halves are stored as 15 - q
  };
  static Int4Scales LoadInt4Scales(const std::byte* scales) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    const Ints signed_scale = _mm512_cvtepi8_epi32(bytes);
    return {_mm512_abs_epi32(signed_scale), _mm512_movepi32_mask(signed_scale)};
  }
  // What a block's dot products begin with: -8 (or 7) times the sum of its activations.
  static Ints BeginInt4Dot(const Int4Scales& scales, int32_t sum) {
    return _mm512_mask_blend_epi32(scales.negative, _mm512_set1_epi32(-kInt4Zero * sum),
                                   _mm512_set1_epi32((1 - kInt4Zero) * sum));
  }
  static Ints LowHalves(Ints a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
  static Ints HighHalves(Ints a) {
    return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(0x0f));
  }
  // sum + 4 bytes of `activations` times each lane's bytes.
  static Ints DotBytes(Ints sum, Ints weights, const std::byte* activations) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(activations)));
    return sum;
  }
  // sum + a * scale for a of 16 bits; the upper half of each magnitude is zero.
  static Ints DotWords(Ints sum, Ints a, const Int4Scales& scales) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(scales.magnitude));
    return sum;
  }
};

struct Isa : Avx512DotBase<Isa> {
  static constexpr const char* kName = "avx512_bf16";
};

}  // namespace convene::kernels::avx512_bf16
