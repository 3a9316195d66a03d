// int4 panels become the float panels that packing their unpacked rows gives, byte by byte.
#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/kernels_test.h"
#include "kernels/pack.h"

namespace convene::kernels {
namespace {

struct OwnedPack {
  OwnedPack(WeightFormat format, int group, int rows, int cols)
      : matrix{.format = format, .group = group, .rows = rows, .cols = cols},
        storage(matrix.size_bytes() + 64, std::byte{0}) {
    data = Align(storage);
    matrix.data = data;
  }
  std::vector<std::byte> bytes() const { return {data, data + matrix.size_bytes()}; }

  PackedMatrix matrix;
  std::vector<std::byte> storage;
  std::byte* data;
};

void PackFloats(const std::vector<float>& values, const OwnedPack& target) {
  const StoredMatrix stored{.data = reinterpret_cast<const std::byte*>(values.data()),
                            .row_stride = target.matrix.cols,
                            .rows = target.matrix.rows,
                            .cols = target.matrix.cols};
  PackRows(target.matrix, target.data, [&](int row) {
    return row < target.matrix.rows ? RowSource{&stored, row} : RowSource{};
  });
}

TEST(DequantizeInt4, GivesWhatPackingUnpackedRowsDoes) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const int group : {32, 64, 128}) {
      for (const auto& [rows, cols] : {std::pair(1, 1), std::pair(16, 32), std::pair(64, 64),
                                       std::pair(70, 100), std::pair(200, 257)}) {
        SCOPED_TRACE(testing::Message()
                     << Name(format) << ", group " << group << ", " << rows << " x " << cols);
        std::vector<float> values(static_cast<size_t>(rows) * cols);
        for (float& value : values) value = normal(random);
        const OwnedPack rounded(WeightFormat::kInt4, group, rows, cols);
        PackFloats(values, rounded);
        for (int row = 0; row < rows; ++row) {
          UnpackRow(rounded.matrix, row, values.data() + static_cast<size_t>(row) * cols);
        }
        const OwnedPack expected(format, 0, rows, cols);
        PackFloats(values, expected);
        const OwnedPack actual(format, 0, rows, cols);
        DequantizeInt4(rounded.matrix, {}, actual.matrix, actual.data);
        EXPECT_TRUE(actual.bytes() == expected.bytes());
      }
    }
  }
}

TEST(DequantizeInt4, GivesOutliersTheirOwnValues) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const auto& [rows, cols] : {std::pair(1, 1), std::pair(70, 100), std::pair(200, 257)}) {
      SCOPED_TRACE(testing::Message() << Name(format) << ", " << rows << " x " << cols);
      std::vector<float> values(static_cast<size_t>(rows) * cols);
      for (float& value : values) value = normal(random);
      const OwnedPack rounded(WeightFormat::kInt4, 32, rows, cols);
      PackFloats(values, rounded);
      std::vector<uint32_t> ends;
      std::vector<Outlier> list;
      for (int row = 0; row < rows; ++row) {
        float* const of_row = values.data() + static_cast<size_t>(row) * cols;
        UnpackRow(rounded.matrix, row, of_row);
        // The first and the last column, some between them, and of every third row none.
        for (int col = row % 3 == 0 ? cols : 0; col < cols; ++col) {
          if (col != 0 && col != cols - 1 && random() % 16 != 0) continue;
          of_row[col] = static_cast<float>(col) - 8.5f * static_cast<float>(row % 7);
          list.push_back({static_cast<uint16_t>(col), tensor::Bf16FromFloat(of_row[col])});
          of_row[col] = tensor::FloatFromBf16(list.back().value);
        }
        ends.push_back(static_cast<uint32_t>(list.size()));
      }
      const OwnedPack expected(format, 0, rows, cols);
      PackFloats(values, expected);
      const OwnedPack actual(format, 0, rows, cols);
      DequantizeInt4(rounded.matrix, {ends.data(), list.data()}, actual.matrix, actual.data);
      EXPECT_TRUE(actual.bytes() == expected.bytes());
    }
  }
}

}  // namespace
}  // namespace convene::kernels
