// Rows of activations or floats in memory that somebody else owns, and how buffers of them are
// placed one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_set.h"

namespace convene::device {

// (rows, stride_bytes) of activations or floats.
struct RowBuffer {
  std::byte* data = nullptr;
  int64_t stride_bytes = 0;

  std::byte* row(int64_t row_idx) const { return data + row_idx * stride_bytes; }
  RowBuffer From(int64_t row_idx) const { return {row(row_idx), stride_bytes}; }
  float* floats(int64_t row_idx) const { return reinterpret_cast<float*>(row(row_idx)); }
};

// What is made piece by piece and becomes activations as a whole row is kept as this: `format`, but
// float for int8, whose scale depends on the whole row. Then it is memory of its own.
inline kernels::ActivationFormat WideFormat(kernels::ActivationFormat format) {
  return format == kernels::ActivationFormat::kInt8 ? kernels::ActivationFormat::kF32 : format;
}

// Writes zeros behind the `size` elements of each of the first rows, where products read on
// (kernels/activation_row.h): zero weights there make nothing of any number, but NaN of NaN.
void ClearPadding(const RowBuffer& rows, int64_t num_rows, int size,
                  kernels::ActivationFormat format);

// Places buffers in memory from `base` on; with null it only counts.
class RowPlacer {
 public:
  explicit RowPlacer(std::byte* base) : base_(base) {}

  RowBuffer Bytes(int64_t rows, int64_t row_bytes);
  RowBuffer Rows(int64_t rows, int64_t width, kernels::ActivationFormat format);

  uint64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  uint64_t used_ = 0;
};

}  // namespace convene::device
