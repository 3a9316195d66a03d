#include "device/cpu/row_buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace convene::device {
namespace {

// What other products have left behind a row's elements may be another request's NaN.
TEST(ClearPadding, LeavesZerosWhereProductsReadBehindTheElements) {
  constexpr int kRows = 3;
  constexpr int kSize = 21;
  constexpr int kStride = 128;
  std::vector<float> values(size_t{kRows} * kStride, std::numeric_limits<float>::quiet_NaN());
  const RowBuffer rows{.data = reinterpret_cast<std::byte*>(values.data()),
                       .stride_bytes = kStride * sizeof(float)};
  for (int row_idx = 0; row_idx < kRows; ++row_idx) {
    for (int i = 0; i < kSize; ++i) rows.floats(row_idx)[i] = 7;
  }
  ClearPadding(rows, kRows - 1, kSize, kernels::ActivationFormat::kF32);
  for (int row_idx = 0; row_idx < kRows; ++row_idx) {
    const bool is_cleared = row_idx < kRows - 1;
    for (int i = 0; i < kStride; ++i) {
      const float value = rows.floats(row_idx)[i];
      if (i < kSize) {
        EXPECT_EQ(value, 7);
      } else if (is_cleared && i < 64) {
        EXPECT_EQ(value, 0) << row_idx << ", " << i;
      } else {
        EXPECT_TRUE(std::isnan(value)) << row_idx << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace convene::device
