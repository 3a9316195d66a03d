// The primitives of AVX-512 with the VNNI dot products, for the templates of kernels/cpu: what
// those with BF16 too build upon, then those without it (Cascade Lake, Ice Lake, Rocket Lake).
// Include only from sources compiled for such an instruction set.
#pragma once

#include "kernels/cpu/avx512_base.h"

namespace convene::kernels::avx512_vnni {

template <class Tag>
struct Avx512VnniBase : cpu::Avx512Base<Tag> {
  using Base = cpu::Avx512Base<Tag>;
  using Ints = typename Base::Ints;
  using Int4Scales = typename Base::Int4Scales;
  // int4 weights are multiplied without unpacking for so many rows (measured:
  // docs/results/int_gemm.md).
  static constexpr int kMostInt4DotRows = 8;

  // Written out for bytes: g++ 12 spills the sums around the intrinsic (352 against 804 Gop/s).
  template <cpu::DotKind kKind>
  static typename Base::template Sums<kKind> Dot(typename Base::template Sums<kKind> sum, __m512i a,
                                                 __m512i w) {
    if constexpr (kKind == cpu::DotKind::kInt8) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
      return sum;
    } else {
      return Base::template Dot<kKind>(sum, a, w);
    }
  }

  // What int4_dot.h needs. A block's dot products begin with -8 (or 7) times the sum of its
  // activations.
  static Ints BeginInt4Dot(const Int4Scales& scales, int32_t sum) {
    return _mm512_mask_blend_epi32(scales.negative, _mm512_set1_epi32(-kInt4Zero * sum),
                                   _mm512_set1_epi32((1 - kInt4Zero) * sum));
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

struct Isa : cpu::Bf16AsFloats<Avx512VnniBase<Isa>> {
  static constexpr const char* kName = "avx512_vnni";
};

}  // namespace convene::kernels::avx512_vnni
