// Matrices that a checkpoint stores as few bits with scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/enumerators_test.h"
#include "kernels/pack.h"

namespace convene::kernels {
namespace {

std::vector<uint8_t> RandomBytes(size_t count, int below) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> any(0, below - 1);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(any(random));
  return bytes;
}

// The whole matrix packed, zeros where it is padded.
std::vector<std::byte> PackedScaled(const StoredMatrix& source, WeightFormat format) {
  PackedMatrix matrix{.format = format, .group = 32, .rows = source.rows, .cols = source.cols};
  std::vector<std::byte> storage(matrix.size_bytes() + 64);
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  std::byte* data = storage.data() + (64 - address % 64) % 64;
  matrix.data = data;
  for (int group = 0; group * kLanes < source.rows; ++group) {
    RowSource rows[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = group * kLanes + lane;
      if (row < source.rows) rows[lane] = {&source, row};
    }
    EXPECT_TRUE(PackGroup(rows, matrix, group, data));
  }
  return {data, data + matrix.size_bytes()};
}

// In every format the same as if the elements had been multiplied out before.
void ExpectPackedAs(const StoredMatrix& source, const std::vector<float>& elements) {
  const StoredMatrix plain{.data = reinterpret_cast<const std::byte*>(elements.data()),
                           .row_stride = source.cols,
                           .rows = source.rows,
                           .cols = source.cols};
  std::vector<float> row(source.cols);
  for (int i = 0; i < source.rows; ++i) {
    LoadRow(source, i, 0, source.cols, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), elements.begin() + i * source.cols)) << i;
  }
  for (const WeightFormat format : kEvery<WeightFormat>) {
    EXPECT_EQ(PackedScaled(source, format), PackedScaled(plain, format)) << Name(format);
  }
}

TEST(PackGroup, MultipliesFp8WithTheScaleOfItsBlock) {
  // A block of rows 100 to 239 of a matrix (300, 333): its blocks begin before it and end behind.
  constexpr int kStoredRows = 300;
  constexpr int kCols = 333;
  constexpr int kFirst = 100;
  constexpr int kRows = 140;
  std::vector<uint8_t> bytes = RandomBytes(kStoredRows * kCols, 127);  // no NaN, no sign
  for (size_t i = 0; i < bytes.size(); i += 3) bytes[i] |= 0x80;
  std::vector<float> scales(3 * 3);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
  const StoredMatrix source{.dtype = tensor::DType::kE4m3,
                            .data = reinterpret_cast<const std::byte*>(&bytes[kFirst * kCols]),
                            .row_stride = kCols,
                            .rows = kRows,
                            .cols = kCols,
                            .scales = {.data = std::as_bytes(std::span(scales)),
                                       .block_rows = 128,
                                       .block_cols = 128,
                                       .blocks_per_row = 3},
                            .first_row = kFirst};
  std::vector<float> elements;
  for (int row = kFirst; row < kFirst + kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      elements.push_back(tensor::FloatFromE4m3(bytes[row * kCols + col]) *
                         scales[row / 128 * 3 + col / 128]);
    }
  }
  ExpectPackedAs(source, elements);

  StoredMatrix transposed = source;
  std::swap(transposed.rows, transposed.cols);
  std::swap(transposed.row_stride, transposed.col_stride);
  transposed.is_transposed = true;
  std::vector<float> columns;
  for (int col = 0; col < kCols; ++col) {
    for (int row = 0; row < kRows; ++row) columns.push_back(elements[row * kCols + col]);
  }
  ExpectPackedAs(transposed, columns);
}

TEST(PackGroup, UnpacksMxfp4WhoseRowsTakeTurns) {
  // The odd rows of rows 6 to 45 of a matrix (50, 96).
  constexpr int kStoredRows = 50;
  constexpr int kCols = 96;
  constexpr int kFirst = 6;
  constexpr int kRows = 20;
  const std::vector<uint8_t> bytes = RandomBytes(kStoredRows * kCols / 2, 256);
  std::vector<uint8_t> scales = RandomBytes(kStoredRows * kCols / 32, 20);
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(scale + 115);
  const StoredMatrix source{
      .dtype = tensor::DType::kE2m1,
      .data = reinterpret_cast<const std::byte*>(&bytes[(kFirst + 1) * kCols / 2]),
      .row_stride = 2 * kCols,
      .rows = kRows,
      .cols = kCols,
      .scales = {.data = std::as_bytes(std::span(scales)),
                 .is_e8m0 = true,
                 .block_cols = 32,
                 .blocks_per_row = kCols / 32},
      .first_row = kFirst + 1,
      .row_step = 2};
  std::vector<float> elements;
  for (int i = 0; i < kRows; ++i) {
    const int row = kFirst + 1 + 2 * i;
    for (int col = 0; col < kCols; ++col) {
      const uint8_t pair = bytes[(row * kCols + col) / 2];
      elements.push_back(
          tensor::FloatFromE2m1(static_cast<uint8_t>(col % 2 == 0 ? pair & 15 : pair >> 4)) *
          tensor::FloatFromE8m0(scales[row * (kCols / 32) + col / 32]));
    }
  }
  ExpectPackedAs(source, elements);
}

}  // namespace
}  // namespace convene::kernels
