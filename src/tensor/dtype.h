// Element types of stored tensors and their scalar conversions. Packed weight formats are not here
// (kernels/packed_matrix.h).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace convene::tensor {

enum class DType {
  kF32,
  kF16,
  kBf16,
  kE4m3,  // with scales (small_floats.h), as the next
  kE2m1,  // two in a byte, the low half first
};

constexpr int SizeBits(DType dtype) {
  return dtype == DType::kF32 ? 32 : dtype == DType::kE4m3 ? 8 : dtype == DType::kE2m1 ? 4 : 16;
}

// The safetensors spelling: "F32", "F16", "BF16", "F8_E4M3"; of kE2m1, which it stores as bytes,
// "MXFP4".
std::string_view Name(DType dtype);
// Of those without scales: F32, F16 and BF16.
std::optional<DType> DTypeFromName(std::string_view name);

// A bfloat16 as its bits.
using Bf16 = uint16_t;

inline float FloatFromBf16(Bf16 bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest even; NaN stays NaN, overflow becomes infinity.
inline Bf16 Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float FloatFromF16(uint16_t bits);

// Element `index` of a tensor's bytes (any alignment) as float, without scales.
float LoadElement(DType dtype, const std::byte* data, size_t index);

// Converts `count` elements of a `dtype` without scales (any alignment) to float or bf16.
void ConvertToFloat(DType dtype, const std::byte* source, size_t count, float* target);
void ConvertToBf16(DType dtype, const std::byte* source, size_t count, Bf16* target);

}  // namespace convene::tensor
