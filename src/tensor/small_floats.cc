#include "tensor/small_floats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace convene::tensor {
namespace {

constexpr float kE2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float DecodeE4m3(int bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

const std::array<float, 256>& E4m3Table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int bits = 0; bits < 256; ++bits) values[bits] = DecodeE4m3(bits);
    return values;
  }();
  return table;
}

}  // namespace

float FloatFromE4m3(uint8_t bits) { return E4m3Table()[bits]; }

uint8_t E4m3FromFloat(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::min(std::abs(value), 448.0f);
  // Steps of 2^-9 below 2^-6, of an eighth of the power of two from there on.
  const int exponent = std::max(-6, std::ilogb(std::max(magnitude, 0x1p-20f)));
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  // 16 steps are the next power of two: its code follows.
  return static_cast<uint8_t>(sign | (steps < 8 ? steps : (exponent + 6) * 8 + steps));
}

float FloatFromE2m1(uint8_t half) { return (half & 8) != 0 ? -kE2m1[half & 7] : kE2m1[half & 7]; }

uint8_t E2m1FromFloat(float value) {
  const float magnitude = std::abs(value);
  uint8_t code = 0;
  while (code < 7) {
    const float middle = (kE2m1[code] + kE2m1[code + 1]) / 2;
    const bool up = code % 2 == 0 ? magnitude > middle : magnitude >= middle;  // ties to even codes
    if (!up) break;
    ++code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

void FloatsFromE4m3(const std::byte* data, int64_t first, int count, float* out) {
  const std::array<float, 256>& table = E4m3Table();
  for (int i = 0; i < count; ++i) out[i] = table[static_cast<uint8_t>(data[first + i])];
}

void FloatsFromE2m1(const std::byte* data, int64_t first, int count, float* out) {
  constexpr float kValues[] = {0,     0.5f,  1,     1.5f,  2,     3,     4,     6,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  const auto half = [&](int64_t index) {
    const int pair = static_cast<int>(data[index / 2]);
    return kValues[index % 2 == 0 ? pair & 15 : pair >> 4];
  };
  int i = 0;
  if (first % 2 != 0 && count > 0) out[i++] = half(first);
  for (; i + 1 < count; i += 2) {
    const int pair = static_cast<int>(data[(first + i) / 2]);
    out[i] = kValues[pair & 15];
    out[i + 1] = kValues[pair >> 4];
  }
  if (i < count) out[i] = half(first + i);
}

float FloatFromE8m0(uint8_t bits) {
  if (bits == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  if (bits == 0) return 0x1p-127f;  // not normal
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

float BlockScales::At(int64_t row, int64_t col) const {
  const int64_t index = row / block_rows * blocks_per_row + col / block_cols;
  if (is_e8m0) return FloatFromE8m0(static_cast<uint8_t>(data[index]));
  return LoadElement(dtype, data.data(), static_cast<size_t>(index));
}

}  // namespace convene::tensor
