#include "device/cpu/row_buffer.h"

#include "device/exchange_memory.h"

namespace convene::device {

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
