// Rows of activations as they travel between ranks: float32, bf16, or fp8 with a scale per row.
// What is sent where is not here (group.h).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "tensor/dtype.h"

namespace convene::comm {

enum class WireFormat {
  kF32,
  kBf16,  // rounded to the nearest, ties to even
  kE4m3,  // a float scale, then E4M3 (tensor/small_floats.h): the largest of the row becomes 448
};

// "f32", "bf16", "fp8".
std::string_view Name(WireFormat format);

// Of a row of `cols` numbers, padded to a multiple of 4.
constexpr size_t RowBytes(WireFormat format, size_t cols) {
  switch (format) {
    case WireFormat::kF32:
      return 4 * cols;
    case WireFormat::kBf16:
      return (2 * cols + 3) / 4 * 4;
    case WireFormat::kE4m3:
      return 4 + (cols + 3) / 4 * 4;
  }
  return 0;
}

// Writes a row's RowBytes to `wire` (4-byte aligned), its padding as zeros. The same bits on every
// instruction set. Infinities and NaN stay what they are in f32 and bf16; in fp8, which has no
// infinity, both become NaN and do not touch the other numbers of the row.
void EncodeRow(WireFormat format, std::span<const float> row, std::byte* wire);
void EncodeRow(WireFormat format, std::span<const tensor::Bf16> row, std::byte* wire);

// The reverse; to bf16 it rounds as EncodeRow does.
void DecodeRow(WireFormat format, const std::byte* wire, std::span<float> row);
void DecodeRow(WireFormat format, const std::byte* wire, std::span<tensor::Bf16> row);

}  // namespace convene::comm
