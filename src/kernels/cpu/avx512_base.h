// What instruction sets with AVX-512 F/BW/DQ/VL share, for the templates of kernels/cpu: first all
// of them, then those without the BF16 dot product. Include only from sources compiled for such a
// set. The tag makes each set's functions its own: the linker must not hand code compiled for one
// set to another.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/spread_steps.h"
#include "kernels/cpu/tile.h"
#include "tensor/dtype.h"

namespace convene::kernels::cpu {

template <class Tag>
struct Avx512Base {
  using Floats = __m512;  // 16 lanes; + - * / work on it
  using Ints = __m512i;   // 16 lanes of 32 bits
  template <DotKind>
  static constexpr int kRegisterTiles = kTileRows * 4;  // sums of a tile that fit the registers
  template <DotKind>
  static constexpr bool kMatrixTiles = false;
  template <DotKind>
  static constexpr bool kTakesApart = false;

  static Floats Zero() { return _mm512_setzero_ps(); }
  static Floats Broadcast(float value) { return _mm512_set1_ps(value); }
  static Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  static void Store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  // To a line of memory past the caches. What another thread reads needs FenceStreamed after it.
  static void StoreStreamed(float* to, Floats value) { _mm512_stream_ps(to, value); }
  static void FenceStreamed() { _mm_sfence(); }
  // The first `count` lanes (0 to 16); the others read as zero and are not written.
  static Floats LoadPartial(const float* from, int count) {
    return _mm512_maskz_loadu_ps(Mask(count), from);
  }
  static void StorePartial(float* to, Floats value, int count) {
    _mm512_mask_storeu_ps(to, Mask(count), value);
  }

  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats Abs(Floats a) { return _mm512_abs_ps(a); }
  // Of magnitudes (no sign), by their bits: infinity is larger than any number, NaN than infinity.
  static Floats MaxMagnitude(Floats a, Floats b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
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
  static float LargestMagnitude(Floats a) {
    return _mm_cvtss_f32(
        _mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_castps_si512(a)))));
  }

  // Written out: to g++ 12 a function of nothing but prefetches has no effect, and calls of it go.
  static void Prefetch(const std::byte* line) { asm volatile("prefetcht1 (%0)" : : "r"(line)); }
  static void PrefetchNear(const std::byte* line) { asm volatile("prefetcht0 (%0)" : : "r"(line)); }

  // One step of a GEMM: 4 bytes of each activation row against 64 bytes (16 packed rows) of
  // weights.
  template <DotKind>
  using Weights = __m512i;
  template <DotKind>
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
  template <DotKind>
  static __m512i BroadcastStep(const void* row, int64_t step) {
    return _mm512_set1_epi32(static_cast<const int32_t*>(row)[step]);
  }
  // Of float32; which instruction multiplies bf16 and bytes is what the sets differ in.
  template <DotKind>
  static Floats Dot(Floats sum, __m512i a, __m512i w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(w), sum);
  }

  // Whole numbers.
  static Ints ZeroInts() { return _mm512_setzero_si512(); }
  static Ints BroadcastInt(int32_t value) { return _mm512_set1_epi32(value); }
  static Ints LoadInts(const std::byte* from) { return _mm512_loadu_si512(from); }
  static void StoreInts(std::byte* to, Ints value) { _mm512_storeu_si512(to, value); }
  static Ints AddInts(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static int32_t SumInts(Ints a) { return _mm512_reduce_add_epi32(a); }
  static Ints RoundToInts(Floats a) { return _mm512_cvtps_epi32(a); }
  static void StoreInt8(int8_t* to, Ints value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(value));
  }
  static Floats LoadInt8(const int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  static Floats FloatsFromSums(const std::byte* from, int32_t bias) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(LoadInts(from), _mm512_set1_epi32(bias)));
  }

  // What unpack.h needs: the scales of 16 rows (signed bytes) for UnpackInt4Line.
  struct Spread {
    __m512i scale;         // its magnitude, in both 16-bit halves of each row's lane
    __m512i scale_of_top;  // that times 4096
    __m512i bias;          // kInt8Zero - 8 (or 7, packed_matrix.h) times it, in all four bytes
  };
  static Spread SpreadInt4Scales(const std::byte* scales) {
    const auto table = [](int step) {
      alignas(16) uint8_t bytes[16];
      for (int scale = 0; scale < 16; ++scale) bytes[scale] = uint8_t(kInt8Zero - step * scale);
      return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
    };
    const __m512i rows = _mm512_set_epi32(  // each row's byte four times
        0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a, 0x09090909,
        0x08080808, 0x07070707, 0x06060606, 0x05050505, 0x04040404, 0x03030303, 0x02020202,
        0x01010101, 0x00000000);
    const __m512i all =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    const __m512i signed_scale = _mm512_shuffle_epi8(all, rows);
    const __m512i magnitude = _mm512_abs_epi8(signed_scale);
    const __m512i scale = _mm512_and_si512(magnitude, _mm512_set1_epi16(0xff));
    const __m512i bias = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table(kInt4Zero), magnitude),
                                                  _mm512_movepi8_mask(signed_scale),
                                                  table(kInt4Zero - 1), magnitude);
    return {scale, _mm512_slli_epi16(scale, 12), bias};
  }
  // 64 bytes of (16, 4) pairs of halves, times the scales: the low halves to `low`, the high ones
  // to `high`, as bytes with kInt8Zero added. Two bytes are multiplied at once, since neither
  // product exceeds a byte. The high halves are 16 times too large, so the upper half of their
  // product with 4096 times the scale is wanted.
  static void UnpackInt4Line(const std::byte* from, const Spread& spread, std::byte* low,
                             std::byte* high) {
    const __m512i packed = _mm512_loadu_si512(from);
    const __m512i lows = _mm512_and_si512(packed, _mm512_set1_epi8(0x0f));
    const __m512i highs = _mm512_and_si512(packed, _mm512_set1_epi8(char(0xf0)));
    _mm512_storeu_si512(low, _mm512_add_epi8(_mm512_mullo_epi16(lows, spread.scale), spread.bias));
    _mm512_storeu_si512(
        high, _mm512_add_epi8(_mm512_mulhi_epu16(highs, spread.scale_of_top), spread.bias));
  }
  // 64 bytes of (16, 4) with kInt8Zero added, as bf16: columns 0 and 1 to `first`, 2 and 3 to
  // `second`, each (16, 2).
  static void Bf16FromBytes(const std::byte* from, std::byte* first, std::byte* second) {
    const __m512i bytes = _mm512_loadu_si512(from);
    // The float 2^23 + b has b in its lowest bits.
    const auto floats = [](__m512i byte_of_each) {
      const __m512i bits = _mm512_or_si512(byte_of_each, _mm512_set1_epi32(0x4b000000));
      return _mm512_castps_si512(
          _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(8388608.0f + kInt8Zero)));
    };
    const __m512i byte = _mm512_set1_epi32(0xff);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const auto pair = [&](__m512i even, __m512i odd) {
      return _mm512_or_si512(_mm512_srli_epi32(floats(even), 16),
                             _mm512_and_si512(floats(odd), high));
    };
    _mm512_storeu_si512(first, pair(_mm512_and_si512(bytes, byte),
                                    _mm512_and_si512(_mm512_srli_epi32(bytes, 8), byte)));
    _mm512_storeu_si512(second, pair(_mm512_and_si512(_mm512_srli_epi32(bytes, 16), byte),
                                     _mm512_srli_epi32(bytes, 24)));
  }

  // What int4_dot.h needs beside products and BeginInt4Dot.
  struct Int4Scales {
    Ints magnitude;
    __mmask16 negative;  // rows whose halves are stored as 15 - q
  };
  static Int4Scales LoadInt4Scales(const std::byte* scales) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    const Ints signed_scale = _mm512_cvtepi8_epi32(bytes);
    return {_mm512_abs_epi32(signed_scale), _mm512_movepi32_mask(signed_scale)};
  }
  static Ints LowHalves(Ints a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
  static Ints HighHalves(Ints a) {
    return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(0x0f));
  }

  // Sums of a tile.
  template <DotKind kKind>
  using Sums = std::conditional_t<kKind == DotKind::kInt8, Ints, Floats>;
  template <DotKind kKind>
  static Sums<kKind> ZeroSums() {
    return Sums<kKind>(_mm512_setzero_si512());
  }
  template <DotKind kKind>
  static Sums<kKind> LoadSums(const std::byte* from) {
    return Sums<kKind>(_mm512_loadu_si512(from));
  }
  template <DotKind kKind>
  static void StoreSums(std::byte* to, Sums<kKind> value) {
    _mm512_storeu_si512(to, __m512i(value));
  }

 protected:
  static __mmask16 Mask(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
};

// Sums of a tile beside elements that are taken apart: those of 4 rows against a whole panel, or of
// 6 rows against half of it. All of 6 rows at once are slower, and so are 4 rows in two halves
// (docs/results/int_gemm.md).
inline constexpr int kTilesTakenApart = 16;

// Without the BF16 dot product: bf16 as two halves, each made float, and rounded in steps.
template <class Base>
struct Bf16AsFloats : Base {
  using Floats = typename Base::Floats;

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
    _mm256_mask_storeu_epi16(to, Base::Mask(count), Bf16Of(value));
  }

  // As in avx2/isa.h.
  template <DotKind kKind>
  static constexpr bool kTakesApart = kKind == DotKind::kBf16;
  template <DotKind kKind>
  static constexpr int kRegisterTiles =
      kKind == DotKind::kBf16 ? kTilesTakenApart : Base::template kRegisterTiles<kKind>;
  template <DotKind kKind>
  static __m512i LoadPart(const std::byte* from, int part) {
    static_assert(kKind == DotKind::kBf16);
    const __m512i both = _mm512_loadu_si512(from);
    return part == 0 ? _mm512_slli_epi32(both, 16)
                     : _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  }
  static __m512i BroadcastPart(const void* spread, int64_t index) {
    return _mm512_set1_epi32(static_cast<const int32_t*>(spread)[index]);
  }
  template <DotKind kKind>
  static Floats DotPart(Floats sum, __m512i a, __m512i w) {
    static_assert(kKind == DotKind::kBf16);
    return Base::template Dot<DotKind::kF32>(sum, a, w);
  }
  template <DotKind kKind>
  static void SpreadSteps(const void* row, int64_t steps, std::byte* out) {
    SpreadStepsOfRow<kKind>(row, steps, out);
  }
};

}  // namespace convene::kernels::cpu
