#include "evaluate/rounding_scheme.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/pack.h"
#include "planner/hybrid_memory.h"

namespace convene::evaluate {
namespace {

std::vector<float> NormalValues(int count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

double SquaredError(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return sum;
}

std::vector<float> Rounded(const std::string& name, int cols, std::vector<float> values) {
  Round(*RoundingSchemeFromName(name), cols, values);
  return values;
}

TEST(RoundingScheme, NamesAreKnownAndDifferent) {
  std::set<std::string> names;
  for (const RoundingScheme& scheme : RoundingSchemes()) {
    EXPECT_TRUE(names.insert(scheme.name).second) << scheme.name;
    EXPECT_STREQ(RoundingSchemeFromName(scheme.name)->name, scheme.name);
  }
  EXPECT_FALSE(RoundingSchemeFromName("int4"));
}

TEST(RoundingScheme, LeavesZerosAndKeepsExactGrids) {
  std::vector<float> grid(256);
  for (size_t i = 0; i < grid.size(); ++i) grid[i] = 0.25f * (static_cast<float>(i % 15) - 7);
  for (const RoundingScheme& scheme : RoundingSchemes()) {
    std::vector<float> zeros(128, 0.0f);
    Round(scheme, 64, zeros);
    EXPECT_EQ(zeros, std::vector<float>(128, 0.0f)) << scheme.name;
  }
  // A scheme that searches finds a grid of 15 values whose largest is 7 steps only nearly; one with
  // a zero point reaches both ends.
  EXPECT_LT(SquaredError(Rounded("int4-group32-zero", 64, grid), grid), 0.01 * 256);
  EXPECT_LT(SquaredError(Rounded("int8-channel", 64, grid), grid), 1e-4 * 256);
}

TEST(RoundingScheme, GivesAScaleAtMostSoManyValues) {
  const std::vector<float> values = NormalValues(8 * 256);
  for (const RoundingScheme& scheme : RoundingSchemes()) {
    std::vector<float> rounded = values;
    Round(scheme, 256, rounded);
    const size_t unit = scheme.unit == RoundingScheme::Unit::kTensor    ? rounded.size()
                        : scheme.unit == RoundingScheme::Unit::kChannel ? 256
                                                                        : scheme.group;
    for (size_t begin = 0; begin < rounded.size(); begin += unit) {
      const std::set<float> different(&rounded[begin], &rounded[begin] + unit);
      // Outliers are values of their own, at most two of a group of normal weights.
      const size_t most = scheme.scale == RoundingScheme::Scale::kOutliers ? 18
                          : scheme.bits == 8                               ? 255
                                                                           : 16;
      EXPECT_LE(different.size(), most) << scheme.name;
    }
  }
}

TEST(RoundingScheme, FinerUnitsAndFreerScalesAreCloserToTheWeights) {
  constexpr int kCols = 256;
  const std::vector<float> values = NormalValues(64 * kCols);
  const auto error = [&](const char* name) {
    return SquaredError(Rounded(name, kCols, values), values);
  };
  EXPECT_LT(error("int8-group32"), error("int8-channel"));
  EXPECT_LT(error("int8-channel"), error("int8-tensor"));
  EXPECT_LT(error("int8-tensor"), error("int4-group32-zero"));
  EXPECT_LT(error("int4-group32-zero"), error("int4-group32-float"));
  EXPECT_LT(error("int4-group32-outliers"), error("int4-group32"));
  EXPECT_LT(error("int4-group32-float"), error("int4-group32"));
  // The engine's quantiser is better than float scales without search.
  EXPECT_LT(error("int4-group32"), error("int4-group32-reaching"));
  EXPECT_LT(error("int4-group32"), error("int4-group64"));
  EXPECT_LT(error("int4-group64"), error("int4-group128"));
  EXPECT_LT(error("int4-group128"), error("int4-channel"));
  EXPECT_LT(error("int4-channel"), error("int4-tensor"));
}

TEST(RoundingScheme, OfTheEngineIsWhatTheEnginePacks) {
  constexpr int kCols = 160;  // the last group of 64 or 128 is not whole
  const std::vector<float> values = NormalValues(16 * kCols);
  const kernels::StoredMatrix stored{.data = reinterpret_cast<const std::byte*>(values.data()),
                                     .row_stride = kCols,
                                     .rows = 16,
                                     .cols = kCols};
  const std::map<std::string, std::pair<kernels::WeightFormat, int>> formats = {
      {"int8-channel", {kernels::WeightFormat::kInt8, 0}},
      {"int4-group32", {kernels::WeightFormat::kInt4, 32}},
      {"int4-group64", {kernels::WeightFormat::kInt4, 64}},
      {"int4-group128", {kernels::WeightFormat::kInt4, 128}}};
  for (const auto& [name, format] : formats) {
    kernels::PackedMatrix packed{
        .format = format.first, .group = format.second, .rows = 16, .cols = kCols};
    std::vector<std::byte> bytes(packed.size_bytes());
    packed.data = bytes.data();
    kernels::RowSource sources[kernels::kLanes];
    for (int row = 0; row < 16; ++row) sources[row] = {&stored, row};
    EXPECT_TRUE(kernels::PackGroup(sources, packed, 0, bytes.data()));
    std::vector<float> unpacked(values.size());
    for (int row = 0; row < 16; ++row) kernels::UnpackRow(packed, row, &unpacked[row * kCols]);
    const std::vector<float> rounded = Rounded(name, kCols, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(rounded[i], unpacked[i], 1e-6 * 0.1) << name << " " << i;
    }
  }
}

TEST(RoundingScheme, CountsBitsWithItsScales) {
  EXPECT_EQ(RoundingSchemeFromName("int8-channel")->bits_per_weight(), 8);
  EXPECT_EQ(RoundingSchemeFromName("int4-group32")->bits_per_weight(), 4.25);
  EXPECT_EQ(RoundingSchemeFromName("int4-group32-float")->bits_per_weight(), 4.5);
  EXPECT_EQ(RoundingSchemeFromName("int4-group32-zero")->bits_per_weight(), 4.625);
  EXPECT_EQ(RoundingSchemeFromName("int4-group32-outliers")->bits_per_weight(), 5.25);
  // As the search for hybrid plans counts a backup.
  EXPECT_EQ(8 * planner::kInt4BackupBytes, 5.25);
}

}  // namespace
}  // namespace convene::evaluate
