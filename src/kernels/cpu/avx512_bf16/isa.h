// The primitives of AVX-512 with the BF16 and VNNI dot products, for the templates of kernels/cpu.
// Include only from sources compiled for this instruction set.
#pragma once

#include "kernels/cpu/avx512_vnni/isa.h"

namespace convene::kernels::avx512_bf16 {

template <class Tag>
struct Avx512DotBase : avx512_vnni::Avx512VnniBase<Tag> {
  using Base = avx512_vnni::Avx512VnniBase<Tag>;
  using Floats = typename Base::Floats;

  static void StoreBf16(tensor::Bf16* to, Floats value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }
  static void StoreBf16Partial(tensor::Bf16* to, Floats value, int count) {
    _mm256_mask_storeu_epi16(to, Base::Mask(count),
                             reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }

  template <cpu::DotKind kKind>
  static typename Base::template Sums<kKind> Dot(typename Base::template Sums<kKind> sum, __m512i a,
                                                 __m512i w) {
    if constexpr (kKind == cpu::DotKind::kBf16) {
      return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
    } else {
      return Base::template Dot<kKind>(sum, a, w);
    }
  }
};

struct Isa : Avx512DotBase<Isa> {
  static constexpr const char* kName = "avx512_bf16";
};

}  // namespace convene::kernels::avx512_bf16
