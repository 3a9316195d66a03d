// Matrices that are packed and unpacked again.
#include "kernels/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/enumerators_test.h"
#include "kernels/kernels_test.h"

namespace convene::kernels {
namespace {

TEST(WeightFormat, HasANameThatIsReadAgain) {
  for (const WeightFormat format : kEvery<WeightFormat>) {
    EXPECT_EQ(WeightFormatFromName(Name(format)), format) << Name(format);
  }
}

TEST(UnpackRow, GivesBackWhatWasPacked) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    std::vector<float> weights = RandomFloats(100 * 37, 8);
    for (float& w : weights) w = tensor::FloatFromBf16(tensor::Bf16FromFloat(w));
    const Packed packed = Pack({format, {}}, weights, 100, 37);
    std::vector<float> row(37);
    for (const int i : {0, 15, 63, 64, 99}) {
      UnpackRow(packed.matrix, i, row.data());
      EXPECT_TRUE(std::equal(row.begin(), row.end(), weights.begin() + i * 37));
    }
  }
}

TEST(PackGroup, TellsOfWhatIsNotFiniteInTheTargetsFormat) {
  constexpr int kCols = 300;
  for (const Formats& formats : kFormats) {
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF, 3.4e38f}) {
      std::vector<float> weights = RandomFloats(kLanes * kCols, 8);
      weights[7 * kCols + 290] = bad;
      const StoredMatrix source{.data = reinterpret_cast<const std::byte*>(weights.data()),
                                .row_stride = kCols,
                                .rows = kLanes,
                                .cols = kCols};
      PackedMatrix matrix{
          .format = formats.weights, .group = formats.group, .rows = kLanes, .cols = kCols};
      std::vector<std::byte> storage(matrix.size_bytes() + 64);
      std::byte* data = Align(storage);
      matrix.data = data;
      RowSource rows[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) rows[lane] = {&source, lane};
      // 3.4e38 is a float, and infinity as bf16.
      const bool fits = std::isfinite(bad) && formats.weights != WeightFormat::kBf16;
      EXPECT_EQ(PackGroup(rows, matrix, 0, data), fits) << bad << " " << Name(formats.weights);
      // Integers of a part have the scale of the whole row.
      matrix.cols = 280;
      const bool part_fits = IsInteger(formats.weights) ? fits : true;
      EXPECT_EQ(PackGroup(rows, matrix, 0, data), part_fits) << bad;
    }
  }
}

TEST(FirstRowNotFinite, FindsARowOrItsScale) {
  for (const Formats& formats : kFormats) {
    Packed packed = Pack(formats, RandomFloats(100 * 37, 8), 100, 37);
    EXPECT_EQ(FirstRowNotFinite(packed.matrix), std::nullopt);
    const PackedPanel panel = packed.matrix.panel(1);
    auto* bytes = const_cast<std::byte*>(panel.data);
    const uint32_t nan = 0x7fc00000;
    const size_t at = 9;  // row 73
    if (IsInteger(formats.weights)) {
      std::memcpy(bytes + panel.values_bytes() + 4 * at, &nan, 4);
    } else {  // of the first column
      const size_t size = formats.weights == WeightFormat::kBf16 ? 2 : 4;
      std::memcpy(bytes + 4 * at, reinterpret_cast<const char*>(&nan) + 4 - size, size);
    }
    EXPECT_EQ(FirstRowNotFinite(packed.matrix), 73);
  }
}

TEST(Pack, IntegersAreWithinHalfAStepOfTheWeights) {
  constexpr int kRows = 70;
  constexpr int kCols = 333;
  const std::vector<float> weights = RandomFloats(kRows * kCols, 8);
  std::vector<float> row(kCols);
  for (const Formats& formats : kFormats) {
    if (!IsInteger(formats.weights)) continue;
    const Packed packed = Pack(formats, weights, kRows, kCols);
    for (int i = 0; i < kRows; ++i) {
      UnpackRow(packed.matrix, i, row.data());
      const std::span expected(&weights[size_t(i) * kCols], kCols);
      const auto larger = [](float a, float b) { return std::abs(a) < std::abs(b); };
      const float top = std::abs(*std::max_element(expected.begin(), expected.end(), larger));
      double error = 0;
      double energy = 0;
      for (int col = 0; col < kCols; ++col) {
        error += std::pow(row[col] - expected[col], 2);
        energy += std::pow(expected[col], 2);
        if (formats.weights == WeightFormat::kInt8) {
          ASSERT_LE(std::abs(row[col] - expected[col]), 0.5001f * top / 127);
        } else {
          // Clipping at most as far as the smallest scale that is tried: 0.85 of the reaching one,
          // rounded down to a whole number, and the step's half.
          ASSERT_LE(std::abs(row[col] - expected[col]), 0.3f * top);
        }
      }
      // A normal distribution in 4 bits: steps of about 2.3 deviations / 8 and noise of a step by
      // the root of 12.
      if (formats.weights == WeightFormat::kInt4) {
        EXPECT_LE(std::sqrt(error / energy), formats.group == 32 ? 0.095 : 0.12)
            << formats.Describe();
      }
    }
  }
}

TEST(PackGroup, ReadsTransposedAndUnalignedSources) {
  // Stored (cols x rows) as bf16 at an odd address.
  constexpr int kRows = 20;
  constexpr int kCols = 7;
  std::vector<std::byte> bytes(1 + 2 * kRows * kCols);
  std::vector<float> expected(kRows * kCols);
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      const auto value = static_cast<float>(row * kCols + col - 50);
      expected[row * kCols + col] = value;
      const tensor::Bf16 bits = tensor::Bf16FromFloat(value);
      std::memcpy(&bytes[1 + 2 * (col * kRows + row)], &bits, 2);
    }
  }
  PackedMatrix matrix{.format = WeightFormat::kBf16, .rows = kRows, .cols = kCols};
  std::vector<std::byte> storage(matrix.size_bytes() + 64);
  std::byte* data = Align(storage);
  matrix.data = data;
  const StoredMatrix source{.dtype = tensor::DType::kBf16,
                            .data = bytes.data() + 1,
                            .row_stride = 1,
                            .col_stride = kRows,
                            .rows = kRows,
                            .cols = kCols};
  PackRows(matrix, data, [&](int row) -> RowSource {
    return row < kRows ? RowSource{&source, row} : RowSource{};
  });
  std::vector<float> row(kCols);
  for (int i = 0; i < kRows; ++i) {
    UnpackRow(matrix, i, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + i * kCols)) << i;
  }
}

}  // namespace
}  // namespace convene::kernels
