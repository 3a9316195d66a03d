#include "device/cpu/row_buffer.h"

#include <cstring>

#include "device/exchange_memory.h"
#include "kernels/activation_row.h"
#include "kernels/packed_matrix.h"

namespace convene::device {

void ClearPadding(const RowBuffer& rows, int64_t num_rows, int size,
                  kernels::ActivationFormat format) {
  const int64_t element_bytes = kernels::ElementBytes(format);
  const auto padding_bytes =
      static_cast<size_t>((kernels::PaddedDepth(size) - size) * element_bytes);
  if (padding_bytes == 0) return;
  for (int64_t row_idx = 0; row_idx < num_rows; ++row_idx) {
    std::memset(rows.row(row_idx) + size * element_bytes, 0, padding_bytes);
  }
}

RowBuffer RowPlacer::Bytes(int64_t rows, int64_t row_bytes) {
  RowBuffer buffer{.stride_bytes = WholeLines(row_bytes)};
  if (base_ != nullptr) buffer.data = base_ + used_;
  used_ += static_cast<uint64_t>(rows * buffer.stride_bytes);
  return buffer;
}

RowBuffer RowPlacer::Rows(int64_t rows, int64_t width, kernels::ActivationFormat format) {
  return Bytes(rows, kernels::ActivationRowBytes(format, static_cast<int>(width)));
}

}  // namespace convene::device
