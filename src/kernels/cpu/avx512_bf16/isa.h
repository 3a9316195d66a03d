// The primitives of AVX-512 with the BF16 dot product, for the templates of kernels/cpu. Include
// only from sources compiled for this instruction set.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/packed_matrix.h"
#include "tensor/dtype.h"

namespace convene::kernels::avx512_bf16 {

struct Isa {
  static constexpr const char* kName = "avx512_bf16";
  using Floats = __m512;  // 16 lanes; + - * / work on it
  static constexpr int kWidth = 16;

  static Floats Zero() { return _mm512_setzero_ps(); }
  static Floats Broadcast(float value) { return _mm512_set1_ps(value); }
  static Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  static void Store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  // The first `count` lanes (0 to 16); the others read as zero and are not written.
  static Floats LoadPartial(const float* from, int count) {
    return _mm512_maskz_loadu_ps(Mask(count), from);
  }
  static void StorePartial(float* to, Floats value, int count) {
    _mm512_mask_storeu_ps(to, Mask(count), value);
  }
  static void StoreBf16(tensor::Bf16* to, Floats value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }
  static void StoreBf16Partial(tensor::Bf16* to, Floats value, int count) {
    _mm256_mask_storeu_epi16(to, Mask(count), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }

  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats Round(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
  // a * 2^exponent for integral exponents.
  static Floats Scale(Floats a, Floats exponent) { return _mm512_scalef_ps(a, exponent); }
  // Lanes where a < limit become zero in `value`.
  static Floats ZeroWhereLess(Floats a, Floats limit, Floats value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, limit, _CMP_NLT_UQ), value);
  }
  // A fixed tree over the lanes.
  static float Sum(Floats a) { return _mm512_reduce_add_ps(a); }
  static float Maximum(Floats a) { return _mm512_reduce_max_ps(a); }

  static void Prefetch(const std::byte* line) { _mm_prefetch(line, _MM_HINT_T1); }

  // One step of a GEMM: 4 bytes of each activation row against 64 bytes (16 packed rows) of
  // weights.
  using Weights = __m512i;
  using Activations = __m512i;
  static Weights LoadWeights(const std::byte* from) { return _mm512_loadu_si512(from); }
  static Activations BroadcastStep(const void* row, int64_t step) {
    return _mm512_set1_epi32(static_cast<const int32_t*>(row)[step]);
  }
  template <WeightFormat kFormat>
  static Floats Dot(Floats sum, Activations a, Weights w) {
    if constexpr (kFormat == WeightFormat::kBf16) {
      return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
    } else {
      return _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(w), sum);
    }
  }

 private:
  static __mmask16 Mask(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
};

}  // namespace convene::kernels::avx512_bf16
