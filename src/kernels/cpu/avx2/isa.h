// The primitives of AVX2 with FMA for the templates of kernels/cpu: two registers of 8 lanes make
// one vector of 16. Include only from sources compiled for this instruction set.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/spread_steps.h"
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
  template <cpu::DotKind>
  static constexpr int kRegisterTiles = 6;  // 12 of 16 registers hold sums
  // Whatever their number: products of halves take half as many instructions as those of the bytes
  // that unpacking makes.
  static constexpr int kMostInt4DotRows = std::numeric_limits<int>::max();
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
  static Ints LoadInts(const std::byte* from) { return {LoadHalf(from), LoadHalf(from + 32)}; }
  static void StoreInts(std::byte* to, Ints value) {
    StoreHalf(to, value.low);
    StoreHalf(to + 32, value.high);
  }
  static Ints BroadcastInt(int32_t value) {
    return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
  }
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

  // A step of 16 packed rows.
  template <cpu::DotKind>
  using Weights = Ints;
  template <cpu::DotKind>
  static Ints LoadWeights(const std::byte* from) {
    return LoadInts(from);
  }
  template <cpu::DotKind>
  static __m256i BroadcastStep(const void* row, int64_t step) {
    return _mm256_set1_epi32(static_cast<const int32_t*>(row)[step]);
  }
  template <cpu::DotKind>
  static Floats Dot(Floats sum, __m256i a, const Ints& w) {
    return {_mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(w.low), sum.low),
            _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(w.high), sum.high)};
  }

  // Elements taken apart: bf16 as floats, bytes as words of 16 bits, of which a register has pairs.
  template <cpu::DotKind kKind>
  static constexpr bool kTakesApart = kKind != cpu::DotKind::kF32;
  // The even elements (part 0) or the odd ones of a step of 16 packed rows.
  template <cpu::DotKind kKind>
  static Ints LoadPart(const std::byte* from, int part) {
    const Ints both = LoadInts(from);
    if constexpr (kKind == cpu::DotKind::kBf16) {
      const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
      if (part == 1) return {_mm256_and_si256(both.low, high), _mm256_and_si256(both.high, high)};
      return {_mm256_slli_epi32(both.low, 16), _mm256_slli_epi32(both.high, 16)};
    } else {
      const __m256i byte = _mm256_set1_epi16(0xff);
      if (part == 0) return {_mm256_and_si256(both.low, byte), _mm256_and_si256(both.high, byte)};
      return {_mm256_srli_epi16(both.low, 8), _mm256_srli_epi16(both.high, 8)};
    }
  }
  static __m256i BroadcastPart(const void* spread, int64_t index) {
    return _mm256_set1_epi32(static_cast<const int32_t*>(spread)[index]);
  }
  template <cpu::DotKind kKind>
  static Sums<kKind> DotPart(Sums<kKind> sum, __m256i a, const Ints& w) {
    if constexpr (kKind == cpu::DotKind::kBf16) {
      return Dot<cpu::DotKind::kF32>(sum, a, w);
    } else {
      // Signed activations, unsigned weights: sums of two products fit 32 bits.
      return {AddProductsOfWords(sum.low, w.low, a), AddProductsOfWords(sum.high, w.high, a)};
    }
  }
  template <cpu::DotKind kKind>
  static void SpreadSteps(const void* row, int64_t steps, std::byte* out) {
    cpu::SpreadStepsOfRow<kKind>(row, steps, out);
  }

  // What int4_dot.h needs. A lane's sums are two of 16 bits: 32 products of a half (at most 15) and
  // an activation, less 8 times the activations, are at most 32,512.
  struct Int4Scales {
    Ints magnitude;  // twice in each lane
    Ints zero;       // -8 or -7, in the lower half of each lane
  };
  static Int4Scales LoadInt4Scales(const std::byte* scales) {
    Int4Scales loaded;
    for (int half = 0; half < 2; ++half) {
      const __m256i signed_scale = _mm256_cvtepi8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 8 * half)));
      const __m256i magnitude = _mm256_abs_epi32(signed_scale);
      const __m256i zero =
          _mm256_sub_epi32(_mm256_set1_epi32(-kInt4Zero), _mm256_srai_epi32(signed_scale, 31));
      (half == 0 ? loaded.magnitude.low : loaded.magnitude.high) =
          _mm256_or_si256(magnitude, _mm256_slli_epi32(magnitude, 16));
      (half == 0 ? loaded.zero.low : loaded.zero.high) =
          _mm256_and_si256(zero, _mm256_set1_epi32(0xffff));
    }
    return loaded;
  }
  static Ints BeginInt4Dot(const Int4Scales& scales, int32_t sum) {
    const __m256i all = _mm256_set1_epi32(sum);
    return {_mm256_mullo_epi16(all, scales.zero.low), _mm256_mullo_epi16(all, scales.zero.high)};
  }
  static Ints LowHalves(Ints a) {
    const __m256i mask = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
  }
  static Ints HighHalves(Ints a) {
    return LowHalves({_mm256_srli_epi16(a.low, 4), _mm256_srli_epi16(a.high, 4)});
  }
  static Ints DotBytes(Ints sum, Ints weights, const std::byte* activations) {
    const __m256i a = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(activations));
    return {AddProductsOfBytes(sum.low, weights.low, a),
            AddProductsOfBytes(sum.high, weights.high, a)};
  }
  static Ints DotWords(Ints sum, Ints a, const Int4Scales& scales) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, scales.magnitude.low)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, scales.magnitude.high))};
  }

 private:
  // Written out: around the intrinsics g++ 12 adds products first, and then sums do not fit the
  // registers.
  static __m256i AddProductsOfWords(__m256i sum, __m256i w, __m256i a) {
    __m256i products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(w), "x"(a));
    return sum;
  }
  static __m256i AddProductsOfBytes(__m256i sum, __m256i w, __m256i a) {
    __m256i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(w), "x"(a));
    return sum;
  }
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
};

}  // namespace convene::kernels::avx2
