#include "tensor/finite.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace convene::tensor {

// The largest magnitude as a whole number, without a branch, so that both become vector
// instructions.

bool AllFinite(std::span<const float> values) {
  int32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<int32_t>(value) & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

bool AllFinite(std::span<const Bf16> values) {
  int16_t largest = 0;
  for (const Bf16 value : values) {
    largest = std::max(largest, static_cast<int16_t>(value & 0x7fff));
  }
  return largest < 0x7f80;
}

}  // namespace convene::tensor
