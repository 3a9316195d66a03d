// Rows of int8 activations that nobody computed, as measurements multiply them. What is measured
// with them is measure_order.h and measure_streaming.h.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/activation_row.h"

namespace convene::kernels {

// Writes behind the values of `num_rows` rows of `cols` int8 values, one behind the other from
// `rows` on (aligned to 64 bytes), sums and scales as small as real ones: kernels multiply with
// whatever stands there.
inline void EndInventedRows(std::byte* rows, size_t num_rows, int cols) {
  const auto stride = static_cast<size_t>(ActivationRowBytes(ActivationFormat::kInt8, cols));
  const int padded = PaddedDepth(cols);
  for (size_t row = 0; row < num_rows; ++row) {
    std::byte* at = rows + row * stride;
    std::fill_n(BlockSums(at, padded), padded / kInt4Block, 0);
    *RowEnd(at, padded) = {.scale = 1e-3F, .sum = 0};
  }
}

}  // namespace convene::kernels
