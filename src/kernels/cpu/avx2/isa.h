// The primitives of AVX2 with FMA for the templates of kernels/cpu: two registers of 8 lanes make
// one vector of 16. Include only from sources compiled for this instruction set.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/tile.h"
#include "tensor/dtype.h"

namespace convene::kernels::avx2 {

struct Floats {
  __m256 low, high;
  friend Floats operator+(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  friend Floats operator-(Floats a, Floats b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  friend Floats operator*(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  friend Floats operator/(Floats a, Floats b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
};

struct Ints {
  __m256i low, high;
};

struct Isa {
  static constexpr const char* kName = "avx2";
  using Floats = avx2::Floats;
  using Ints = avx2::Ints;
  static constexpr int kRegisterTiles = 6;  // 12 of 16 registers hold sums
  static constexpr int kMostInt4DotRows = 0;
  template <cpu::DotKind>
  static constexpr bool kMatrixTiles = false;
  static constexpr bool kLoadsHalfLines = false;  // all its loads are

  static Floats Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats Broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Floats Load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static void Store(float* to, Floats value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
  }
  static void StoreStreamed(float* to, Floats value) {
    _mm256_stream_ps(to, value.low);
    _mm256_stream_ps(to + 8, value.high);
  }
  static void FenceStreamed() { _mm_sfence(); }
  // The first `count` lanes (0 to 16); the others read as zero and are not written.
  static Floats LoadPartial(const float* from, int count) {
    if (count == kLanes) return Load(from);
    return {_mm256_maskload_ps(from, Mask(count)),
            count > 8 ? _mm256_maskload_ps(from + 8, Mask(count - 8)) : _mm256_setzero_ps()};
  }
  static void StorePartial(float* to, Floats value, int count) {
    if (count == kLanes) return Store(to, value);
    _mm256_maskstore_ps(to, Mask(count), value.low);
    if (count > 8) _mm256_maskstore_ps(to + 8, Mask(count - 8), value.high);
  }

  static Floats MultiplyAdd(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  // Where one of the two is NaN, Max and Min give b.
  static Floats Max(Floats a, Floats b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Floats Min(Floats a, Floats b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Floats Abs(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
  }
  // Of magnitudes (no sign), by their bits: infinity is larger than any number, NaN than infinity.
  static Floats MaxMagnitude(Floats a, Floats b) {
    return {MaxMagnitude(a.low, b.low), MaxMagnitude(a.high, b.high)};
  }
  static Floats Round(Floats a) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
  }
  // a * 2^exponent for integral exponents, in two steps, so that the smallest results are reached
  // through ordinary numbers.
  static Floats Scale(Floats a, Floats exponent) {
    return {ScaleHalf(a.low, exponent.low), ScaleHalf(a.high, exponent.high)};
  }
  // Lanes where a < limit become zero in `value`.
  static Floats ZeroWhereLess(Floats a, Floats limit, Floats value) {
    return {_mm256_and_ps(value.low, _mm256_cmp_ps(a.low, limit.low, _CMP_NLT_UQ)),
            _mm256_and_ps(value.high, _mm256_cmp_ps(a.high, limit.high, _CMP_NLT_UQ))};
  }
  // A fixed tree over the lanes.
  static float Sum(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float Maximum(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static float LargestMagnitude(Floats a) {
    const __m256i eight = _mm256_castps_si256(MaxMagnitude(a.low, a.high));
    const __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(one));
  }

  // Written out as in avx512_base.h.
  static void Prefetch(const std::byte* line) { asm volatile("prefetcht1 (%0)" : : "r"(line)); }

  static void StoreBf16(tensor::Bf16* to, Floats value) {
    // The packing interleaves halves of 128 bits, which the permutation undoes.
    const __m256i packed = _mm256_packus_epi32(Bf16Bits(value.low), Bf16Bits(value.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static void StoreBf16Partial(tensor::Bf16* to, Floats value, int count) {
    alignas(32) tensor::Bf16 all[kLanes];
    StoreBf16(all, value);
    for (int i = 0; i < count; ++i) to[i] = all[i];
  }

  // Whole numbers.
  static Ints ZeroInts() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Ints AddInts(Ints a, Ints b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
  }
  static int32_t SumInts(Ints a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four =
        _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static Ints RoundToInts(Floats a) {
    return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
  }
  static void StoreInt8(int8_t* to, Ints value) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(value.low, value.high), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static Floats LoadInt8(const int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static Floats FloatsFromSums(const std::byte* from, int32_t bias) {
    const __m256i all = _mm256_set1_epi32(bias);
    return {_mm256_cvtepi32_ps(_mm256_sub_epi32(LoadHalf(from), all)),
            _mm256_cvtepi32_ps(_mm256_sub_epi32(LoadHalf(from + 32), all))};
  }

  // What unpack.h needs, as in avx512_base.h.
  struct Spread {
    __m256i scale[2];
    __m256i bias[2];
  };
  static Spread SpreadInt4Scales(const std::byte* scales) {
    Spread spread;
    for (int half = 0; half < 2; ++half) {
      const __m256i signed_scale = _mm256_cvtepi8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 8 * half)));
      const __m256i scale = _mm256_abs_epi32(signed_scale);
      const __m256i if_negative = _mm256_and_si256(scale, _mm256_srai_epi32(signed_scale, 31));
      const __m256i offset = _mm256_sub_epi32(_mm256_slli_epi32(scale, 3), if_negative);
      const __m256i bias = _mm256_sub_epi32(_mm256_set1_epi32(kInt8Zero), offset);
      spread.scale[half] = _mm256_or_si256(scale, _mm256_slli_epi32(scale, 16));
      spread.bias[half] = _mm256_mullo_epi32(bias, _mm256_set1_epi32(0x01010101));
    }
    return spread;
  }
  static void UnpackInt4Line(const std::byte* from, const Spread& spread, std::byte* low,
                             std::byte* high) {
    const __m256i mask = _mm256_set1_epi8(0x0f);
    for (int half = 0; half < 2; ++half) {
      const __m256i packed = LoadHalf(from + 32 * half);
      const auto scaled = [&](__m256i halves) {
        return _mm256_add_epi8(_mm256_mullo_epi16(halves, spread.scale[half]), spread.bias[half]);
      };
      StoreHalf(low + 32 * half, scaled(_mm256_and_si256(packed, mask)));
      StoreHalf(high + 32 * half, scaled(_mm256_and_si256(_mm256_srli_epi16(packed, 4), mask)));
    }
  }
  static void Bf16FromBytes(const std::byte* from, std::byte* first, std::byte* second) {
    const __m256i byte = _mm256_set1_epi32(0xff);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    // The float 2^23 + b has b in its lowest bits.
    const auto floats = [](__m256i byte_of_each) {
      const __m256i bits = _mm256_or_si256(byte_of_each, _mm256_set1_epi32(0x4b000000));
      return _mm256_castps_si256(
          _mm256_sub_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(8388608.0f + kInt8Zero)));
    };
    const auto pair = [&](__m256i even, __m256i odd) {
      return _mm256_or_si256(_mm256_srli_epi32(floats(even), 16),
                             _mm256_and_si256(floats(odd), high));
    };
    for (int half = 0; half < 64; half += 32) {
      const __m256i bytes = LoadHalf(from + half);
      StoreHalf(first + half, pair(_mm256_and_si256(bytes, byte),
                                   _mm256_and_si256(_mm256_srli_epi32(bytes, 8), byte)));
      StoreHalf(second + half, pair(_mm256_and_si256(_mm256_srli_epi32(bytes, 16), byte),
                                    _mm256_srli_epi32(bytes, 24)));
    }
  }

  // Sums of a tile.
  template <cpu::DotKind kKind>
  using Sums = std::conditional_t<kKind == cpu::DotKind::kInt8, Ints, Floats>;
  template <cpu::DotKind kKind>
  static Sums<kKind> ZeroSums() {
    if constexpr (kKind == cpu::DotKind::kInt8) {
      return ZeroInts();
    } else {
      return Zero();
    }
  }
  template <cpu::DotKind kKind>
  static Sums<kKind> LoadSums(const std::byte* from) {
    if constexpr (kKind == cpu::DotKind::kInt8) {
      return {LoadHalf(from), LoadHalf(from + 32)};
    } else {
      return Load(reinterpret_cast<const float*>(from));
    }
  }
  template <cpu::DotKind kKind>
  static void StoreSums(std::byte* to, Sums<kKind> value) {
    if constexpr (kKind == cpu::DotKind::kInt8) {
      StoreHalf(to, value.low);
      StoreHalf(to + 32, value.high);
    } else {
      Store(reinterpret_cast<float*>(to), value);
    }
  }

  // A step of 16 packed rows. The even and the odd elements are taken apart at their use: there are
  // too few registers to keep them.
  template <cpu::DotKind>
  using Weights = Ints;
  template <cpu::DotKind>
  static Ints LoadWeights(const std::byte* from) {
    return {LoadHalf(from), LoadHalf(from + 32)};
  }
  template <cpu::DotKind>
  static __m256i BroadcastStep(const void* row, int64_t step) {
    return _mm256_set1_epi32(static_cast<const int32_t*>(row)[step]);
  }
  template <cpu::DotKind kKind>
  static Sums<kKind> Dot(Sums<kKind> sum, __m256i a, const Ints& w) {
    return {DotHalf<kKind>(sum.low, a, w.low), DotHalf<kKind>(sum.high, a, w.high)};
  }

 private:
  static __m256i Mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256i LoadHalf(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void StoreHalf(std::byte* to, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static __m256 MaxMagnitude(__m256 a, __m256 b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static __m256 ScaleHalf(__m256 a, __m256 exponent) {
    const __m256i whole = _mm256_cvtps_epi32(exponent);
    const __m256i first = _mm256_srai_epi32(whole, 1);
    const auto power = [](__m256i n) {
      return _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
    };
    return _mm256_mul_ps(_mm256_mul_ps(a, power(first)), power(_mm256_sub_epi32(whole, first)));
  }
  // In the lower half of each lane, rounded to nearest even; NaN stays NaN.
  static __m256i Bf16Bits(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }

  template <cpu::DotKind kKind, class Register>
  static Register DotHalf(Register sum, __m256i a, __m256i w) {
    if constexpr (kKind == cpu::DotKind::kF32) {
      return _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(w), sum);
    } else if constexpr (kKind == cpu::DotKind::kBf16) {
      const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
      const auto even = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
      const auto odd = [&](__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, high)); };
      sum = _mm256_fmadd_ps(even(a), even(w), sum);
      return _mm256_fmadd_ps(odd(a), odd(w), sum);
    } else {
      // Signed activations, unsigned weights, in 16 bits: sums of two products fit 32.
      const __m256i a_even = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8);
      const __m256i w_even = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a_even, w_even));
      return _mm256_add_epi32(sum,
                              _mm256_madd_epi16(_mm256_srai_epi16(a, 8), _mm256_srli_epi16(w, 8)));
    }
  }
};

}  // namespace convene::kernels::avx2
