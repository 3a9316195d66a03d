#include "comm/wire_format.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hardware/isa.h"

namespace convene::comm {
namespace {

using tensor::Bf16;
using tensor::FloatFromBf16;

constexpr float kLargestE4m3 = 448.0f;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint8_t kE4m3Nan = 0x7f;

// Loops over a row, written for compilers to vectorise: no branches, no calls. They are inlined
// into a function for each instruction set below.

[[gnu::always_inline]] inline float Load(float value) { return value; }
[[gnu::always_inline]] inline float Load(Bf16 bits) { return FloatFromBf16(bits); }

[[gnu::always_inline]] inline Bf16 RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<Bf16>((bits & 0x7fffffff) > kInfinityBits ? nan : rounded);
}

[[gnu::always_inline]] inline void Store(float value, float* out) { *out = value; }
[[gnu::always_inline]] inline void Store(float value, Bf16* out) { *out = RoundToBf16(value); }

// |scaled| < 464, or not finite.
[[gnu::always_inline]] inline uint8_t RoundToE4m3(float scaled) {
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal numbers keep three bits of the mantissa, and the exponent is biased by 7 for 127.
  const uint32_t normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
  // Below 2^-6 the steps are 2^-9, which is the last bit of a float near 2^14.
  const float steps = std::bit_cast<float>(magnitude) + 0x1p14f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(steps) - std::bit_cast<uint32_t>(0x1p14f);
  uint32_t code = magnitude < std::bit_cast<uint32_t>(0x1p-6f) ? subnormal : normal;
  code = magnitude >= kInfinityBits ? kE4m3Nan : code;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80));
}

[[gnu::always_inline]] inline float FloatFromE4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  // As a float of the same exponent bits it is 2^-120 times the number, also where not normal.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  const uint32_t bits = magnitude == kE4m3Nan ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(bits | sign);
}

template <typename Number>
[[gnu::always_inline]] inline float LargestFinite(const Number* row, size_t cols) {
  uint32_t largest = 0;
  for (size_t i = 0; i < cols; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(Load(row[i])) & 0x7fffffff;
    largest = std::max(largest, bits < kInfinityBits ? bits : 0);
  }
  return std::bit_cast<float>(largest);
}

template <typename Number>
[[gnu::always_inline]] inline void Encode(WireFormat format, const Number* row, size_t cols,
                                          std::byte* wire) {
  if (format == WireFormat::kF32) {
    float* out = reinterpret_cast<float*>(wire);
    for (size_t i = 0; i < cols; ++i) out[i] = Load(row[i]);
  } else if (format == WireFormat::kBf16) {
    Bf16* out = reinterpret_cast<Bf16*>(wire);
    if constexpr (std::is_same_v<Number, Bf16>) {
      std::copy_n(row, cols, out);
    } else {
      for (size_t i = 0; i < cols; ++i) out[i] = RoundToBf16(row[i]);
    }
    if (cols % 2 != 0) out[cols] = 0;
  } else {
    // Not below the smallest normal number, so that its inverse is finite.
    const float scale =
        std::max(LargestFinite(row, cols) / kLargestE4m3, std::numeric_limits<float>::min());
    const float inverse = 1.0f / scale;
    std::memcpy(wire, &scale, sizeof(scale));
    uint8_t* out = reinterpret_cast<uint8_t*>(wire) + sizeof(scale);
    for (size_t i = 0; i < cols; ++i) out[i] = RoundToE4m3(Load(row[i]) * inverse);
    for (size_t i = cols; i % 4 != 0; ++i) out[i] = 0;
  }
}

template <typename Number>
[[gnu::always_inline]] inline void Decode(WireFormat format, const std::byte* wire, size_t cols,
                                          Number* row) {
  if (format == WireFormat::kF32) {
    const float* in = reinterpret_cast<const float*>(wire);
    for (size_t i = 0; i < cols; ++i) Store(in[i], &row[i]);
  } else if (format == WireFormat::kBf16) {
    const Bf16* in = reinterpret_cast<const Bf16*>(wire);
    if constexpr (std::is_same_v<Number, Bf16>) {
      std::copy_n(in, cols, row);
    } else {
      for (size_t i = 0; i < cols; ++i) row[i] = FloatFromBf16(in[i]);
    }
  } else {
    float scale;
    std::memcpy(&scale, wire, sizeof(scale));
    const uint8_t* in = reinterpret_cast<const uint8_t*>(wire) + sizeof(scale);
    for (size_t i = 0; i < cols; ++i) Store(FloatFromE4m3(in[i]) * scale, &row[i]);
  }
}

template <typename Number>
using Encoder = void (*)(WireFormat, const Number*, size_t, std::byte*);
template <typename Number>
using Decoder = void (*)(WireFormat, const std::byte*, size_t, Number*);

template <typename Number>
void EncodeBaseline(WireFormat format, const Number* row, size_t cols, std::byte* wire) {
  Encode(format, row, cols, wire);
}

template <typename Number>
void DecodeBaseline(WireFormat format, const std::byte* wire, size_t cols, Number* row) {
  Decode(format, wire, cols, row);
}

#if defined(__x86_64__)
template <typename Number>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void EncodeAvx512(WireFormat format,
                                                                        const Number* row,
                                                                        size_t cols,
                                                                        std::byte* wire) {
  Encode(format, row, cols, wire);
}

template <typename Number>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void DecodeAvx512(WireFormat format,
                                                                        const std::byte* wire,
                                                                        size_t cols, Number* row) {
  Decode(format, wire, cols, row);
}

template <typename Number>
[[gnu::target("avx2")]] void EncodeAvx2(WireFormat format, const Number* row, size_t cols,
                                        std::byte* wire) {
  Encode(format, row, cols, wire);
}

template <typename Number>
[[gnu::target("avx2")]] void DecodeAvx2(WireFormat format, const std::byte* wire, size_t cols,
                                        Number* row) {
  Decode(format, wire, cols, row);
}

template <typename Number>
Encoder<Number> ChooseEncoder() {
  return hardware::VersionForIsa<Encoder<Number>>(EncodeBaseline<Number>, EncodeAvx2<Number>,
                                                  EncodeAvx512<Number>);
}

template <typename Number>
Decoder<Number> ChooseDecoder() {
  return hardware::VersionForIsa<Decoder<Number>>(DecodeBaseline<Number>, DecodeAvx2<Number>,
                                                  DecodeAvx512<Number>);
}
#else
template <typename Number>
Encoder<Number> ChooseEncoder() {
  return EncodeBaseline<Number>;
}

template <typename Number>
Decoder<Number> ChooseDecoder() {
  return DecodeBaseline<Number>;
}
#endif

template <typename Number>
void EncodeChosen(WireFormat format, std::span<const Number> row, std::byte* wire) {
  static const Encoder<Number> encoder = ChooseEncoder<Number>();
  encoder(format, row.data(), row.size(), wire);
}

template <typename Number>
void DecodeChosen(WireFormat format, const std::byte* wire, std::span<Number> row) {
  static const Decoder<Number> decoder = ChooseDecoder<Number>();
  decoder(format, wire, row.size(), row.data());
}

}  // namespace

std::string_view Name(WireFormat format) {
  return format == WireFormat::kF32 ? "f32" : format == WireFormat::kBf16 ? "bf16" : "fp8";
}

void EncodeRow(WireFormat format, std::span<const float> row, std::byte* wire) {
  EncodeChosen(format, row, wire);
}

void EncodeRow(WireFormat format, std::span<const Bf16> row, std::byte* wire) {
  EncodeChosen(format, row, wire);
}

void DecodeRow(WireFormat format, const std::byte* wire, std::span<float> row) {
  DecodeChosen(format, wire, row);
}

void DecodeRow(WireFormat format, const std::byte* wire, std::span<Bf16> row) {
  DecodeChosen(format, wire, row);
}

}  // namespace convene::comm
