// Numbers of few bits that checkpoints store beside a scale for each block of them. Which blocks
// belong to which scale is told by BlockScales; packed weight formats are not here
// (kernels/packed_matrix.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace convene::tensor {

// E4M3 without infinities (Micikevicius et al., "FP8 Formats for Deep Learning", 2022): bias 7, at
// most 448, 0x7f and 0xff are NaN.
float FloatFromE4m3(uint8_t bits);
// To the nearest, ties to even; beyond the largest, the largest. NaN becomes NaN.
uint8_t E4m3FromFloat(float value);

// E2M1 (OCP Microscaling Formats, 2023): 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative.
float FloatFromE2m1(uint8_t half);
uint8_t E2m1FromFloat(float value);

// `count` consecutive numbers as float, from byte or half number `first` of `data` on.
void FloatsFromE4m3(const std::byte* data, int64_t first, int count, float* out);
void FloatsFromE2m1(const std::byte* data, int64_t first, int count, float* out);

// E8M0: 2^(bits - 127); 255 is NaN.
float FloatFromE8m0(uint8_t bits);
inline constexpr uint8_t kE8m0Nan = 255;

// The scales of a stored matrix (rows, cols), one for each block of block_rows x block_cols
// elements, the last of a row or column partial. Row-major, any alignment.
struct BlockScales {
  std::span<const std::byte> data;  // empty: there are none
  bool is_e8m0 = false;             // bytes; otherwise of `dtype`
  DType dtype = DType::kF32;        // or kF16 or kBf16
  int block_rows = 1;
  int block_cols = 1;
  int64_t blocks_per_row = 0;

  float At(int64_t row, int64_t col) const;
};

}  // namespace convene::tensor
