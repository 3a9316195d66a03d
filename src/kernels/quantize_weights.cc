#include "kernels/quantize_weights.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/activation_row.h"

namespace convene::kernels {
namespace {

constexpr int kMaxGroup = 128;
// Rows of (almost) nothing become zeros.
constexpr float kLeastScale = 1e-30f;

float LargestMagnitude(std::span<const float> row) {
  float top = 0;
  for (const float value : row) top = std::max(top, std::abs(value));
  return top;
}

// Rounds to the nearest whole number, halves to even: exact for magnitudes below 2^22, and unlike
// std::nearbyint it becomes vector instructions.
float RoundToEven(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

float NearestInt4(float value, float inverse_step) {
  const float q = RoundToEven(value * inverse_step);
  return std::min(std::max(q, -8.0f), 7.0f);
}

// Squared error of a group with the given step (signed).
float ErrorOf(std::span<const float> group, float step) {
  const float inverse = 1.0f / step;
  float sums[16] = {};
  size_t i = 0;
  for (; i + 16 <= group.size(); i += 16) {
    for (size_t j = 0; j < 16; ++j) {
      const float error = group[i + j] - NearestInt4(group[i + j], inverse) * step;
      sums[j] += error * error;
    }
  }
  float total = 0;
  for (; i < group.size(); ++i) {
    const float error = group[i] - NearestInt4(group[i], inverse) * step;
    total += error * error;
  }
  for (const float sum : sums) total += sum;
  return total;
}

// The whole-number scale with the least error. The step that just reaches the largest value with -8
// is near the best; a little less clips it and represents the others better.
int BestScale(std::span<const float> group, float row_scale) {
  float most = 0;
  for (const float value : group) {
    if (std::abs(value) > std::abs(most)) most = value;
  }
  if (most == 0) return 1;
  const float reaching = std::abs(most) / 8 / row_scale;
  // -8 times a negative scale is positive.
  const int preferred = most > 0 ? -1 : 1;
  int best = 0;
  float best_error = 0;
  const auto consider = [&](int scale) {
    const float error = ErrorOf(group, static_cast<float>(scale) * row_scale);
    if (best == 0 || error < best_error) {
      best = scale;
      best_error = error;
    }
  };
  const int first = std::clamp(static_cast<int>(reaching * 0.85f), 1, kInt4MaxScale);
  const int last = std::clamp(static_cast<int>(std::ceil(reaching)), 1, kInt4MaxScale);
  for (int magnitude = first; magnitude <= last; ++magnitude) consider(preferred * magnitude);
  consider(-best);
  return best;
}

}  // namespace

float QuantizeInt8Row(std::span<const float> row, int8_t* values) {
  const float top = LargestMagnitude(row);
  const float inverse = Int8Inverse(top);
  for (size_t i = 0; i < row.size(); ++i) {
    values[i] = static_cast<int8_t>(RoundToEven(row[i] * inverse));
  }
  return top / 127.0f;
}

float QuantizeInt4Row(std::span<const float> row, int group, uint8_t* values, int8_t* scales) {
  CHECK(group > 0 && group <= kMaxGroup, "group {}", group);
  // The largest group's step becomes kInt4MaxScale times the row's scale.
  const float row_scale = LargestMagnitude(row) / 8 / kInt4MaxScale;
  for (size_t first = 0, index = 0; first < row.size(); first += group, ++index) {
    const auto columns = row.subspan(first, std::min<size_t>(group, row.size() - first));
    if (row_scale < kLeastScale) {
      std::fill_n(values + first, columns.size(), uint8_t{kInt4Zero});
      scales[index] = 1;
      continue;
    }
    const int scale = BestScale(columns, row_scale);
    scales[index] = static_cast<int8_t>(scale);
    const float inverse = 1.0f / (static_cast<float>(scale) * row_scale);
    for (size_t i = 0; i < columns.size(); ++i) {
      values[first + i] = static_cast<uint8_t>(NearestInt4(columns[i], inverse) + kInt4Zero);
    }
  }
  return row_scale;
}

}  // namespace convene::kernels
