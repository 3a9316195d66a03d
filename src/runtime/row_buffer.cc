#include "runtime/row_buffer.h"

namespace convene::runtime {
namespace {

int64_t AlignedRow(int64_t row_bytes) {
  constexpr int64_t kLine = 64;
  return (row_bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

int64_t RowStride(kernels::ActivationFormat format, int width) {
  return AlignedRow(kernels::ActivationRowBytes(format, width));
}

RowBuffer RowPlacer::Bytes(int64_t rows, int64_t row_bytes) {
  RowBuffer buffer{.stride_bytes = AlignedRow(row_bytes)};
  if (base_ != nullptr) buffer.data = base_ + used_;
  used_ += static_cast<uint64_t>(rows * buffer.stride_bytes);
  return buffer;
}

RowBuffer RowPlacer::Rows(int64_t rows, int64_t width, kernels::ActivationFormat format) {
  return Bytes(rows, kernels::ActivationRowBytes(format, static_cast<int>(width)));
}

}  // namespace convene::runtime
