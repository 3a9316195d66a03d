#include "kernels/quantize_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "hardware/isa.h"
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

// Vectors of any width give the same bits: a sum of squares has kSumLanes chains, whatever the
// number of lanes that are computed at once.
constexpr size_t kSumLanes = 16;
using Float4 [[gnu::vector_size(16)]] = float;
using Float8 [[gnu::vector_size(32)]] = float;
using Float16 [[gnu::vector_size(64)]] = float;

// The value of largest magnitude, with its sign; of two that differ in nothing else the first one.
template <typename Vector>
[[gnu::always_inline]] inline float Largest(std::span<const float> row) {
  constexpr size_t kLanesHere = sizeof(Vector) / sizeof(float);
  Vector highest = {};
  Vector lowest = {};
  size_t i = 0;
  for (; i + kLanesHere <= row.size(); i += kLanesHere) {
    Vector value;
    std::memcpy(&value, &row[i], sizeof(value));
    highest = value > highest ? value : highest;
    lowest = value < lowest ? value : lowest;
  }
  float top = 0;
  float bottom = 0;
  for (size_t lane = 0; lane < kLanesHere; ++lane) {
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

template <typename Vector>
struct IntsLike;
template <>
struct IntsLike<Float4> {
  using Type [[gnu::vector_size(16)]] = int32_t;
};
template <>
struct IntsLike<Float8> {
  using Type [[gnu::vector_size(32)]] = int32_t;
};
template <>
struct IntsLike<Float16> {
  using Type [[gnu::vector_size(64)]] = int32_t;
};

// The largest magnitude, by the bits: so infinity is larger than any number, and NaN than infinity.
template <typename Vector>
[[gnu::always_inline]] inline float LargestMagnitude(std::span<const float> row) {
  using Ints = typename IntsLike<Vector>::Type;
  constexpr size_t kLanesHere = sizeof(Vector) / sizeof(float);
  constexpr int32_t kMagnitude = 0x7fffffff;
  Ints largest = {};
  size_t i = 0;
  for (; i + kLanesHere <= row.size(); i += kLanesHere) {
    Ints bits;
    std::memcpy(&bits, &row[i], sizeof(bits));
    bits &= kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  int32_t top = 0;
  for (size_t lane = 0; lane < kLanesHere; ++lane) top = std::max(top, largest[lane]);
  for (; i < row.size(); ++i) top = std::max(top, std::bit_cast<int32_t>(row[i]) & kMagnitude);
  return std::bit_cast<float>(top);
}

// Squared error of a group with the given step (signed).
template <typename Vector>
[[gnu::always_inline]] inline float ErrorOf(std::span<const float> group, float step) {
  constexpr size_t kLanesHere = sizeof(Vector) / sizeof(float);
  constexpr size_t kParts = kSumLanes / kLanesHere;
  const float inverse = 1.0f / step;
  const Vector least = Vector{} - 8.0f;
  const Vector most = Vector{} + 7.0f;
  Vector sums[kParts] = {};
  size_t i = 0;
  for (; i + kSumLanes <= group.size(); i += kSumLanes) {
#pragma GCC unroll 4
    for (size_t part = 0; part < kParts; ++part) {
      Vector value;
      std::memcpy(&value, &group[i + kLanesHere * part], sizeof(value));
      Vector q = (value * inverse + kRoundingShift) - kRoundingShift;
      q = q < least ? least : q;
      q = q > most ? most : q;
      const Vector error = value - q * step;
      sums[part] += error * error;
    }
  }
  float total = 0;
  for (; i < group.size(); ++i) {
    const float error = group[i] - NearestInt4(group[i], inverse) * step;
    total += error * error;
  }
  for (const Vector& part : sums) {
    for (size_t lane = 0; lane < kLanesHere; ++lane) total += part[lane];
  }
  return total;
}

// The whole-number scale with the least error. The step that just reaches the largest value with -8
// is near the best; a little less clips it and represents the others better.
template <typename Vector>
[[gnu::always_inline]] inline int BestScale(std::span<const float> group, float row_scale) {
  const float most = Largest<Vector>(group);
  if (most == 0) return 1;
  const float reaching = std::abs(most) / 8 / row_scale;
  // -8 times a negative scale is positive.
  const int preferred = most > 0 ? -1 : 1;
  int best = 0;
  float best_error = 0;
  const auto consider = [&](int scale) {
    const float error = ErrorOf<Vector>(group, static_cast<float>(scale) * row_scale);
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

template <typename Vector>
[[gnu::always_inline]] inline float QuantizeInt4(std::span<const float> row,
                                                 std::span<const float> whole, int group,
                                                 uint8_t* values, int8_t* scales) {
  // The largest group's step becomes kInt4MaxScale times the row's scale.
  const float row_scale = LargestMagnitude<Vector>(whole) / 8 / kInt4MaxScale;
  if (!std::isfinite(row_scale)) return row_scale;
  for (size_t first = 0, index = 0; first < row.size(); first += group, ++index) {
    const auto columns = row.subspan(first, std::min<size_t>(group, row.size() - first));
    if (row_scale < kLeastScale) {
      std::fill_n(values + first, columns.size(), uint8_t{kInt4Zero});
      scales[index] = 1;
      continue;
    }
    const int scale = BestScale<Vector>(columns, row_scale);
    scales[index] = static_cast<int8_t>(scale);
    const float inverse = 1.0f / (static_cast<float>(scale) * row_scale);
    for (size_t i = 0; i < columns.size(); ++i) {
      values[first + i] = static_cast<uint8_t>(
          static_cast<int>(NearestInt4(columns[i], inverse) + static_cast<float>(kInt4Zero)));
    }
  }
  return row_scale;
}

float QuantizeInt4Baseline(std::span<const float> row, std::span<const float> whole, int group,
                           uint8_t* values, int8_t* scales) {
  return QuantizeInt4<Float4>(row, whole, group, values, scales);
}

#if defined(__x86_64__)
// Clang has no such preference and says so. NOLINTNEXTLINE(clang-diagnostic-ignored-attributes)
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] float
QuantizeInt4Avx512(std::span<const float> row, std::span<const float> whole, int group,
                   uint8_t* values, int8_t* scales) {
  return QuantizeInt4<Float16>(row, whole, group, values, scales);
}

[[gnu::target("avx2")]] float QuantizeInt4Avx2(std::span<const float> row,
                                               std::span<const float> whole, int group,
                                               uint8_t* values, int8_t* scales) {
  return QuantizeInt4<Float8>(row, whole, group, values, scales);
}

auto ChooseQuantizeInt4() {
  return hardware::VersionForIsa(QuantizeInt4Baseline, QuantizeInt4Avx2, QuantizeInt4Avx512);
}
#else
auto ChooseQuantizeInt4() { return QuantizeInt4Baseline; }
#endif

}  // namespace

float QuantizeInt8Row(std::span<const float> row, std::span<const float> whole, int8_t* values) {
  const float top = LargestMagnitude<Float4>(whole);
  if (!std::isfinite(top)) return top;
  const float inverse = Int8Inverse(top);
  for (size_t i = 0; i < row.size(); ++i) {
    values[i] = static_cast<int8_t>(RoundToEven(row[i] * inverse));
  }
  return top / 127.0f;
}

float QuantizeInt4Row(std::span<const float> row, std::span<const float> whole, int group,
                      uint8_t* values, int8_t* scales) {
  CHECK(group > 0 && group <= kMaxGroup, "group {}", group);
  static const auto quantize = ChooseQuantizeInt4();
  return quantize(row, whole, group, values, scales);
}

}  // namespace convene::kernels
