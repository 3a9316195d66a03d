// Packing some columns of a matrix gives the numbers that packing all of them does.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/enumerators_test.h"
#include "kernels/kernels_test.h"
#include "kernels/pack.h"

namespace convene::kernels {
namespace {

constexpr int kAllRows = 20;

// Columns [first_col, first_col + count) of `source`, packed and unpacked again.
std::vector<float> RoundTrip(const StoredMatrix& source, WeightFormat format, int group,
                             int first_col, int count) {
  PackedMatrix matrix{.format = format, .group = group, .rows = source.rows, .cols = count};
  std::vector<std::byte> storage(matrix.size_bytes() + 64);
  std::byte* data = Align(storage);
  matrix.data = data;
  PackRows(matrix, data, [&](int row) -> RowSource {
    return row < source.rows ? RowSource{&source, row, first_col} : RowSource{};
  });
  std::vector<float> values(static_cast<size_t>(source.rows) * count);
  for (int row = 0; row < source.rows; ++row) UnpackRow(matrix, row, &values[row * count]);
  return values;
}

void ExpectColumnsOfTheWhole(const StoredMatrix& source, WeightFormat format, int group,
                             int first_col, int count) {
  const std::vector<float> whole = RoundTrip(source, format, group, 0, source.cols);
  const std::vector<float> part = RoundTrip(source, format, group, first_col, count);
  for (int row = 0; row < source.rows; ++row) {
    for (int col = 0; col < count; ++col) {
      ASSERT_EQ(part[row * count + col], whole[row * source.cols + first_col + col])
          << Name(format) << " group " << group << " row " << row << " column " << first_col + col;
    }
  }
}

TEST(PackGroup, PacksColumnsWithTheNumbersOfTheWholeRow) {
  constexpr int kCols = 420;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(kAllRows * kCols);
  for (float& value : values) value = normal(random);
  for (int row = 0; row < kAllRows; ++row) values[row * kCols + 300] = 9;  // outside of most parts
  const StoredMatrix source{.data = reinterpret_cast<const std::byte*>(values.data()),
                            .row_stride = kCols,
                            .rows = kAllRows,
                            .cols = kCols};
  for (const WeightFormat format : kEvery<WeightFormat>) {
    if (format == WeightFormat::kInt4) continue;  // below: its parts are of whole groups
    ExpectColumnsOfTheWhole(source, format, 32, 0, 37);
    ExpectColumnsOfTheWhole(source, format, 32, 37, 290);
    ExpectColumnsOfTheWhole(source, format, 32, 327, 93);
  }
  for (const int group : {32, 64, 128}) {
    ExpectColumnsOfTheWhole(source, WeightFormat::kInt4, group, 0, 128);
    ExpectColumnsOfTheWhole(source, WeightFormat::kInt4, group, 128, 256);
    ExpectColumnsOfTheWhole(source, WeightFormat::kInt4, group, 384, 36);
  }
}

TEST(PackGroup, PacksColumnsOfFp8BlocksFromWithinABlock) {
  constexpr int kCols = 300;
  std::vector<std::byte> bytes(kAllRows * kCols);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 % 120);
  const std::vector<float> scales = {0.5f, 0.3f, 0.7f};
  const StoredMatrix source{.dtype = tensor::DType::kE4m3,
                            .data = bytes.data(),
                            .row_stride = kCols,
                            .rows = kAllRows,
                            .cols = kCols,
                            .scales = {.data = std::as_bytes(std::span(scales)),
                                       .block_rows = 128,
                                       .block_cols = 128,
                                       .blocks_per_row = 3}};
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    ExpectColumnsOfTheWhole(source, format, 32, 101, 170);
  }
}

TEST(PackGroup, PacksColumnsOfMxfp4FromTheSecondHalfOfAByte) {
  constexpr int kCols = 96;
  std::vector<std::byte> bytes(kAllRows * kCols / 2);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 13 % 251);
  std::vector<std::byte> scales(kAllRows * kCols / 32);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(120 + i % 11);
  const StoredMatrix source{
      .dtype = tensor::DType::kE2m1,
      .data = bytes.data(),
      .row_stride = kCols,
      .rows = kAllRows,
      .cols = kCols,
      .scales = {.data = scales, .is_e8m0 = true, .block_cols = 32, .blocks_per_row = kCols / 32}};
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    ExpectColumnsOfTheWhole(source, format, 32, 21, 50);
  }
}

}  // namespace
}  // namespace convene::kernels
