// Cutting a packed matrix gives the bytes that packing its parts does, and putting the parts
// together gives the bytes of the whole.
#include "kernels/packed_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "kernels/kernels_test.h"
#include "kernels/pack.h"

namespace convene::kernels {
namespace {

struct Case {
  WeightFormat format;
  int group;
  int intermediate;
  int hidden;
  std::vector<int> bounds;  // of the parts
};

// All bytes of it count, those that no kernel reads, too.
struct Owned {
  Owned(WeightFormat format, int group, int rows, int cols)
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

StoredMatrix RandomMatrix(int rows, int cols, std::mt19937& random, std::vector<float>& values) {
  std::normal_distribution<float> normal;
  values.resize(static_cast<size_t>(rows) * cols);
  for (float& value : values) value = normal(random);
  for (int row = 0; row < rows; ++row) values[size_t(row) * cols + cols - 1] = 9;
  return {.data = reinterpret_cast<const std::byte*>(values.data()),
          .row_stride = cols,
          .rows = rows,
          .cols = cols};
}

class PackedPart : public testing::TestWithParam<Case> {
 protected:
  PackedPart() {
    std::mt19937 random(11);
    const Case& a = GetParam();
    gate_ = RandomMatrix(a.intermediate, a.hidden, random, gate_values_);
    up_ = RandomMatrix(a.intermediate, a.hidden, random, up_values_);
    down_ = RandomMatrix(a.hidden, a.intermediate, random, down_values_);
  }

  Owned Rows(int first, int count, bool gated) const {
    Owned packed(GetParam().format, GetParam().group, gated ? GateUpRows(count) : count,
                 GetParam().hidden);
    PackRows(packed.matrix, packed.data, [&](int row) -> RowSource {
      const GateUpRow at = gated ? GateUpRowAt(count, row) : GateUpRow{true, row};
      if (at.row >= count) return {};
      return {at.is_up ? &up_ : &gate_, first + at.row};
    });
    return packed;
  }

  Owned Columns(int first, int count) const {
    Owned packed(GetParam().format, GetParam().group, GetParam().hidden, count);
    PackRows(packed.matrix, packed.data, [&](int row) -> RowSource {
      return row < down_.rows ? RowSource{&down_, row, first} : RowSource{};
    });
    return packed;
  }

  // As a part of a step writes it: over whatever lies there.
  static void Empty(Owned& target, bool gated, int count) {
    std::fill_n(target.data, target.matrix.size_bytes(), std::byte{0x5a});
    if (HasPadding(target.matrix, gated, count)) PackZeros(target.matrix, target.data);
  }

  std::vector<float> gate_values_, up_values_, down_values_;
  StoredMatrix gate_, up_, down_;
};

TEST_P(PackedPart, OfRowsIsWhatPackingItGivesAndComesBack) {
  const std::vector<int>& bounds = GetParam().bounds;
  const int size = GetParam().intermediate;
  for (const bool gated : {true, false}) {
    const Owned whole = Rows(0, size, gated);
    Owned again(GetParam().format, GetParam().group, whole.matrix.rows, whole.matrix.cols);
    Empty(again, gated, size);
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      const int first = bounds[i];
      const int count = bounds[i + 1] - first;
      const Owned packed = Rows(first, count, gated);
      Owned taken(GetParam().format, GetParam().group, packed.matrix.rows, packed.matrix.cols);
      Empty(taken, gated, count);
      TakeRows({whole.matrix, first, 0, count, gated}, taken.matrix, taken.data);
      EXPECT_TRUE(taken.bytes() == packed.bytes()) << "rows from " << first << ", gated " << gated;
      TakeRows({packed.matrix, 0, first, count, gated}, again.matrix, again.data);
    }
    EXPECT_TRUE(again.bytes() == whole.bytes()) << "gated " << gated;
  }
}

TEST_P(PackedPart, OfColumnsIsWhatPackingItGivesAndComesBack) {
  const std::vector<int>& bounds = GetParam().bounds;
  const int size = GetParam().intermediate;
  const Owned whole = Columns(0, size);
  Owned again(GetParam().format, GetParam().group, whole.matrix.rows, whole.matrix.cols);
  Empty(again, /*gated=*/false, whole.matrix.rows);
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int first = bounds[i];
    const int count = bounds[i + 1] - first;
    const Owned packed = Columns(first, count);
    Owned taken(GetParam().format, GetParam().group, packed.matrix.rows, packed.matrix.cols);
    Empty(taken, /*gated=*/false, packed.matrix.rows);
    TakeColumns({whole.matrix, first, 0, count}, taken.matrix, taken.data);
    EXPECT_TRUE(taken.bytes() == packed.bytes()) << "columns from " << first;
    TakeColumns({packed.matrix, 0, first, count}, again.matrix, again.data);
  }
  EXPECT_TRUE(again.bytes() == whole.bytes());
}

INSTANTIATE_TEST_SUITE_P(Cases, PackedPart,
                         testing::Values(Case{WeightFormat::kF32, 0, 128, 96, {0, 64, 128}},
                                         Case{WeightFormat::kF32, 0, 61, 40, {0, 20, 40, 61}},
                                         Case{WeightFormat::kBf16, 0, 256, 128, {0, 64, 192, 256}},
                                         Case{WeightFormat::kBf16, 0, 61, 200, {0, 15, 30, 61}},
                                         Case{WeightFormat::kInt8, 0, 256, 128, {0, 128, 256}},
                                         Case{WeightFormat::kInt8, 0, 99, 72, {0, 33, 34, 66, 99}},
                                         Case{WeightFormat::kInt4, 32, 256, 128, {0, 128, 256}},
                                         Case{WeightFormat::kInt4, 32, 200, 100, {0, 96, 128, 200}},
                                         Case{WeightFormat::kInt4, 64, 328, 72, {0, 64, 320, 328}},
                                         Case{WeightFormat::kInt4, 128, 328, 200, {0, 128, 328}},
                                         Case{WeightFormat::kInt4, 128, 200, 328, {0, 128, 200}}),
                         [](const auto& param_info) {
                           return std::string(Name(param_info.param.format)) + "_" +
                                  std::to_string(param_info.index);
                         });

}  // namespace
}  // namespace convene::kernels
