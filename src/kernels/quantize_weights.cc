#include "kernels/quantize_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/activation_row.h"

namespace convene::kernels {
namespace {

constexpr int kMaxGroup = 128;
// Rows of (almost) nothing become zeros.
constexpr float kLeastScale = 1e-30f;

// Rounds to the nearest whole number, halves to even: exact for magnitudes below 2^22, and unlike
// std::nearbyint it becomes vector instructions.
constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23
float RoundToEven(float x) { return (x + kRoundingShift) - kRoundingShift; }

float NearestInt4(float value, float inverse_step) {
  const float q = RoundToEven(value * inverse_step);
  return std::min(std::max(q, -8.0f), 7.0f);
}

// Vectors that every machine has: this is most of the time of packing.
using Float4 [[gnu::vector_size(16)]] = float;

Float4 AllOf(float value) { return Float4{value, value, value, value}; }

Float4 LoadFour(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

Float4 NearestInt4(Float4 value, float inverse_step) {
  Float4 q = (value * AllOf(inverse_step) + AllOf(kRoundingShift)) - AllOf(kRoundingShift);
  q = q < AllOf(-8.0f) ? AllOf(-8.0f) : q;
  return q > AllOf(7.0f) ? AllOf(7.0f) : q;
}

// The value of largest magnitude, with its sign; of two that differ in nothing else the positive
// one.
float Largest(std::span<const float> row) {
  Float4 highest = AllOf(0);
  Float4 lowest = AllOf(0);
  size_t i = 0;
  for (; i + 4 <= row.size(); i += 4) {
    const Float4 value = LoadFour(&row[i]);
    highest = value > highest ? value : highest;
    lowest = value < lowest ? value : lowest;
  }
  float top = 0;
  float bottom = 0;
  for (int lane = 0; lane < 4; ++lane) {
    top = std::max(top, highest[lane]);
    bottom = std::min(bottom, lowest[lane]);
  }
  for (; i < row.size(); ++i) {
    top = std::max(top, row[i]);
    bottom = std::min(bottom, row[i]);
  }
  if (-bottom != top) return -bottom > top ? bottom : top;
  for (const float value : row) {
    if (value == top || value == bottom) return value;
  }
  return 0;
}

// Squared error of a group with the given step (signed).
float ErrorOf(std::span<const float> group, float step) {
  const float inverse = 1.0f / step;
  Float4 sums[4] = {};
  size_t i = 0;
  for (; i + 16 <= group.size(); i += 16) {
    for (size_t part = 0; part < 4; ++part) {
      const Float4 value = LoadFour(&group[i + 4 * part]);
      const Float4 error = value - NearestInt4(value, inverse) * AllOf(step);
      sums[part] += error * error;
    }
  }
  float total = 0;
  for (; i < group.size(); ++i) {
    const float error = group[i] - NearestInt4(group[i], inverse) * step;
    total += error * error;
  }
  for (const Float4& part : sums) {
    for (int lane = 0; lane < 4; ++lane) total += part[lane];
  }
  return total;
}

// The whole-number scale with the least error. The step that just reaches the largest value with -8
// is near the best; a little less clips it and represents the others better.
int BestScale(std::span<const float> group, float row_scale) {
  const float most = Largest(group);
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
  const float top = std::abs(Largest(row));
  const float inverse = Int8Inverse(top);
  for (size_t i = 0; i < row.size(); ++i) {
    values[i] = static_cast<int8_t>(RoundToEven(row[i] * inverse));
  }
  return top / 127.0f;
}

float QuantizeInt4Row(std::span<const float> row, int group, uint8_t* values, int8_t* scales) {
  CHECK(group > 0 && group <= kMaxGroup, "group {}", group);
  // The largest group's step becomes kInt4MaxScale times the row's scale.
  const float row_scale = std::abs(Largest(row)) / 8 / kInt4MaxScale;
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
    size_t i = 0;
    for (; i + 4 <= columns.size(); i += 4) {
      const Float4 q = NearestInt4(LoadFour(&columns[i]), inverse);
      for (int lane = 0; lane < 4; ++lane) {
        values[first + i + lane] = static_cast<uint8_t>(q[lane] + kInt4Zero);
      }
    }
    for (; i < columns.size(); ++i) {
      values[first + i] = static_cast<uint8_t>(NearestInt4(columns[i], inverse) + kInt4Zero);
    }
  }
  return row_scale;
}

}  // namespace convene::kernels
