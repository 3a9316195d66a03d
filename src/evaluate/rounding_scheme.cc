#include "evaluate/rounding_scheme.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/packed_matrix.h"
#include "kernels/quantize_weights.h"
#include "weights/backup_matrix.h"

namespace convene::evaluate {
namespace {

using Unit = RoundingScheme::Unit;
using Scale = RoundingScheme::Scale;

constexpr RoundingScheme kSchemes[] = {
    {"int8-tensor", 8, Unit::kTensor, 0, Scale::kFloat},
    {"int8-channel", 8, Unit::kChannel, 0, Scale::kFloat},
    {"int8-group32", 8, Unit::kGroup, 32, Scale::kFloat},
    {"int4-tensor", 4, Unit::kTensor, 0, Scale::kFloat},
    {"int4-channel", 4, Unit::kChannel, 0, Scale::kFloat},
    {"int4-channel-zero", 4, Unit::kChannel, 0, Scale::kZeroPoint},
    {"int4-group128", 4, Unit::kGroup, 128, Scale::kWhole},
    {"int4-group128-float", 4, Unit::kGroup, 128, Scale::kFloat},
    {"int4-group64", 4, Unit::kGroup, 64, Scale::kWhole},
    {"int4-group64-float", 4, Unit::kGroup, 64, Scale::kFloat},
    {"int4-group32", 4, Unit::kGroup, 32, Scale::kWhole},
    {"int4-group32-reaching", 4, Unit::kGroup, 32, Scale::kReaching},
    {"int4-group32-float", 4, Unit::kGroup, 32, Scale::kFloat},
    {"int4-group32-zero", 4, Unit::kGroup, 32, Scale::kZeroPoint},
    {"int4-group32-outliers", 4, Unit::kGroup, weights::BackupMatrix::kGroup, Scale::kOutliers},
};

// Whole numbers [lowest, highest], of which `zero` stands for 0, times a step.
struct Steps {
  float step = 0;
  float zero = 0;
  float lowest = 0;
  float highest = 0;

  float Nearest(float value) const {
    const float q = std::nearbyint(value / step) + zero;
    return (std::clamp(q, lowest, highest) - zero) * step;
  }
};

double SquaredError(const Steps& steps, std::span<const float> values) {
  double sum = 0;
  for (const float value : values) {
    const double error = steps.Nearest(value) - value;
    sum += error * error;
  }
  return sum;
}

// The steps for values of this range when `shrink` of it is to be reached.
Steps StepsFor(const RoundingScheme& scheme, float lowest, float highest, float shrink) {
  const float levels = scheme.bits == 8 ? 255 : 15;
  if (scheme.scale == Scale::kZeroPoint) {
    const float step = (highest - lowest) * shrink / levels;
    return {step, std::nearbyint(-lowest * shrink / step), 0, levels};
  }
  // 8 bits are symmetric. Of 4 bits the side with the larger magnitude has one step more.
  const float top = std::max(highest, -lowest);
  const float half = scheme.bits == 8 ? 127 : 8;
  const float step = top * shrink / half;
  if (scheme.bits == 8) return {step, 0, -half, half};
  return highest > -lowest ? Steps{step, 0, 1 - half, half} : Steps{step, 0, -half, half - 1};
}

// Weights that share one scale.
void RoundUnit(const RoundingScheme& scheme, std::span<float> values) {
  constexpr float kLeastShrink = 0.3f;  // tensors of 4 bits gain by giving up their few largest
  constexpr float kShrinkStep = 0.02f;
  float lowest = 0;
  float highest = 0;
  for (const float value : values) {
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  if (lowest == highest) return;  // zeros
  Steps best = StepsFor(scheme, lowest, highest, 1);
  if (scheme.bits == 4 && scheme.scale != Scale::kReaching) {
    double best_error = SquaredError(best, values);
    for (float shrink = 1 - kShrinkStep; shrink > kLeastShrink; shrink -= kShrinkStep) {
      const Steps steps = StepsFor(scheme, lowest, highest, shrink);
      const double error = SquaredError(steps, values);
      if (error >= best_error) continue;
      best = steps;
      best_error = error;
    }
  }
  for (float& value : values) value = best.Nearest(value);
}

// As the engine packs a row.
void RoundRowToWholeScales(int group, std::span<float> row) {
  std::vector<uint8_t> values(row.size());
  std::vector<int8_t> scales(row.size() / static_cast<size_t>(group) + 1);
  const float row_scale = kernels::QuantizeInt4Row(row, row, group, values.data(), scales.data());
  for (size_t i = 0; i < row.size(); ++i) {
    const int whole = (values[i] - kernels::kInt4Zero) * scales[i / static_cast<size_t>(group)];
    row[i] = static_cast<float>(whole) * row_scale;
  }
}

// As a backup gives a matrix of f32 back.
void RoundAsBackup(int cols, std::span<float> values) {
  // What is not finite stays: it is an error of whoever loads the model.
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return;
  const auto width = static_cast<size_t>(cols);
  const auto rows = static_cast<int>(values.size() / width);
  const auto at = [&](int row) { return values.data() + static_cast<size_t>(row) * width; };
  weights::BackupMatrix backup{.packed = {.format = kernels::WeightFormat::kInt4,
                                          .group = weights::BackupMatrix::kGroup,
                                          .rows = rows,
                                          .cols = cols}};
  std::vector<std::byte> bytes(backup.size_bytes());
  backup.PlaceAt(bytes.data());
  RoundMatrix([&](int row, float* out) { std::copy_n(at(row), width, out); },
              kernels::WeightFormat::kF32, backup);
  for (int row = 0; row < rows; ++row) UnpackRow(backup, row, at(row));
}

double BitsBeside(const RoundingScheme& scheme) {
  switch (scheme.scale) {
    case Scale::kWhole:
      return 8;
    case Scale::kZeroPoint:
      return 16 + scheme.bits;
    case Scale::kOutliers:
      return 8 + 8 * sizeof(kernels::Outlier);
    default:
      return 16;
  }
}

}  // namespace

double RoundingScheme::bits_per_weight() const {
  return unit == Unit::kGroup ? bits + BitsBeside(*this) / group : bits;
}

std::span<const RoundingScheme> RoundingSchemes() { return kSchemes; }

std::optional<RoundingScheme> RoundingSchemeFromName(std::string_view name) {
  for (const RoundingScheme& scheme : kSchemes) {
    if (name == scheme.name) return scheme;
  }
  return std::nullopt;
}

void Round(const RoundingScheme& scheme, int cols, std::span<float> values) {
  const auto width = static_cast<size_t>(cols);
  CHECK(cols > 0 && values.size() % width == 0, "{} values, rows of {}", values.size(), cols);
  if (scheme.unit == Unit::kTensor) return RoundUnit(scheme, values);
  if (scheme.scale == Scale::kOutliers) return RoundAsBackup(cols, values);
  for (size_t begin = 0; begin < values.size(); begin += width) {
    const std::span<float> row = values.subspan(begin, width);
    if (scheme.unit == Unit::kChannel) {
      RoundUnit(scheme, row);
    } else if (scheme.scale == Scale::kWhole) {
      RoundRowToWholeScales(scheme.group, row);
    } else {
      const auto group = static_cast<size_t>(scheme.group);
      for (size_t first = 0; first < width; first += group) {
        RoundUnit(scheme, row.subspan(first, std::min(group, width - first)));
      }
    }
  }
}

}  // namespace convene::evaluate
