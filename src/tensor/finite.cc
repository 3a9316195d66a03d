#include "tensor/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace convene::tensor {

// What is finite times zero is zero, what is not is NaN, and a sum keeps it. Four sums, so that
// none waits for the one before.
bool AllFinite(std::span<const float> values) {
  using Float4 [[gnu::vector_size(16)]] = float;
  constexpr size_t kSums = 4;
  constexpr size_t kLanes = 4;
  Float4 sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums * kLanes <= values.size(); i += kSums * kLanes) {
#pragma GCC unroll 4
    for (size_t k = 0; k < kSums; ++k) {
      Float4 value;
      std::memcpy(&value, &values[i + k * kLanes], sizeof(value));
      sums[k] += value * 0.0f;
    }
  }
  const Float4 both = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float sum = (both[0] + both[1]) + (both[2] + both[3]);
  for (; i < values.size(); ++i) sum += values[i] * 0.0f;
  return sum == 0;
}

bool AllFinite(std::span<const Bf16> values) {
  int16_t largest = 0;  // magnitude; becomes vector instructions
  for (const Bf16 value : values) {
    largest = std::max(largest, static_cast<int16_t>(value & 0x7fff));
  }
  return largest < 0x7f80;
}

}  // namespace convene::tensor
