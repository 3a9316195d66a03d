// A row of activations: what a GEMM multiplies with the weights. Rows are padded with zeros to
// PaddedDepth elements, so that a dot product may run over the padding.
//
// Sources compiled for one instruction set include this, so it includes little and its functions
// are always inlined (kernel_set.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_matrix.h"

namespace convene::kernels {

enum class ActivationFormat { kF32, kBf16, kInt8 };

[[gnu::always_inline]] constexpr int64_t ElementBytes(ActivationFormat format) {
  return format == ActivationFormat::kF32 ? 4 : format == ActivationFormat::kBf16 ? 2 : 1;
}

// Behind the padded values of an int8 row: [padded / kInt4Block] int32, the sum of each block's
// values, then this. A value is its int8 times `scale`.
struct Int8RowEnd {
  float scale = 0;
  int32_t sum = 0;  // of all values
};

// What values are multiplied with to become int8, the largest magnitude being `top`. Rows of
// (almost) nothing become zeros.
[[gnu::always_inline]] constexpr float Int8Inverse(float top) {
  return top > 1e-30f ? 127.0f / top : 0.0f;
}

// Of a row of `count` elements; a multiple of 64.
[[gnu::always_inline]] constexpr int64_t ActivationRowBytes(ActivationFormat format, int count) {
  const int64_t padded = PaddedDepth(count);
  if (format != ActivationFormat::kInt8) return padded * ElementBytes(format);
  const int64_t used = padded + padded / kInt4Block * 4 + static_cast<int64_t>(sizeof(Int8RowEnd));
  return (used + 63) / 64 * 64;
}

[[gnu::always_inline]] inline int32_t* BlockSums(void* row, int padded) {
  return reinterpret_cast<int32_t*>(static_cast<std::byte*>(row) + padded);
}
[[gnu::always_inline]] inline const int32_t* BlockSums(const void* row, int padded) {
  return reinterpret_cast<const int32_t*>(static_cast<const std::byte*>(row) + padded);
}
[[gnu::always_inline]] inline Int8RowEnd* RowEnd(void* row, int padded) {
  return reinterpret_cast<Int8RowEnd*>(BlockSums(row, padded) + padded / kInt4Block);
}
[[gnu::always_inline]] inline const Int8RowEnd* RowEnd(const void* row, int padded) {
  return reinterpret_cast<const Int8RowEnd*>(BlockSums(row, padded) + padded / kInt4Block);
}

// By how much the product of such a row with stored weights, each of which has kInt8Zero added, is
// too large. A sum that no row has wraps around.
[[gnu::always_inline]] inline int32_t StoredBias(const Int8RowEnd& end) {
  return static_cast<int32_t>(static_cast<uint32_t>(kInt8Zero) * static_cast<uint32_t>(end.sum));
}

}  // namespace convene::kernels
