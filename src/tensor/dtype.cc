#include "tensor/dtype.h"

#include <cmath>
#include <cstring>

#include "tensor/small_floats.h"

namespace convene::tensor {

std::string_view Name(DType dtype) {
  constexpr std::string_view kNames[] = {"F32", "F16", "BF16", "F8_E4M3", "MXFP4"};
  return kNames[static_cast<size_t>(dtype)];
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    if (name == Name(dtype)) return dtype;
  }
  return std::nullopt;
}

float FloatFromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 0x1fu ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << 13);
}

float LoadElement(DType dtype, const std::byte* data, size_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  if (dtype == DType::kE4m3) return FloatFromE4m3(static_cast<uint8_t>(data[index]));
  if (dtype == DType::kE2m1) {
    const int pair = static_cast<int>(data[index / 2]);
    return FloatFromE2m1(static_cast<uint8_t>(index % 2 == 0 ? pair & 15 : pair >> 4));
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return dtype == DType::kBf16 ? FloatFromBf16(bits) : FloatFromF16(bits);
}

void ConvertToFloat(DType dtype, const std::byte* source, size_t count, float* target) {
  if (dtype == DType::kF32) {
    std::memcpy(target, source, count * 4);
    return;
  }
  for (size_t i = 0; i < count; ++i) target[i] = LoadElement(dtype, source, i);
}

void ConvertToBf16(DType dtype, const std::byte* source, size_t count, Bf16* target) {
  if (dtype == DType::kBf16) {
    std::memcpy(target, source, count * 2);
    return;
  }
  for (size_t i = 0; i < count; ++i) target[i] = Bf16FromFloat(LoadElement(dtype, source, i));
}

}  // namespace convene::tensor
