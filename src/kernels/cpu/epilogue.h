// What follows the sums of a panel GEMM: scales of integer weights, bias, addition to the residual
// stream, or SiLU times up.
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/math.h"

namespace convene::kernels::cpu {

// Sums become floats in place. The order of the factors is part of the specification: with it all
// instruction sets give the same bits for int8 activations.
template <class Isa, DotKind kKind>
void ScaleSums(const PanelGemm& gemm, std::byte* sums, int first_row, int num_rows) {
  const float* scales = gemm.weights.scales();
  for (int row = 0; row < num_rows; ++row) {
    std::byte* at = sums + row * kSumStride;
    if constexpr (kKind == DotKind::kInt8) {
      const Int8RowEnd& end =
          *RowEnd(gemm.rows + (first_row + row) * gemm.row_stride, gemm.weights.padded());
      const auto row_scale = Isa::Broadcast(end.scale);
      for (int column = 0; column < gemm.weights.width; column += kLanes) {
        const auto value = Isa::FloatsFromSums(at + column * 4, kInt8Zero * end.sum);
        Isa::Store(reinterpret_cast<float*>(at) + column,
                   value * Isa::Load(scales + column) * row_scale);
      }
    } else {
      auto* floats = reinterpret_cast<float*>(at);
      for (int column = 0; column < gemm.weights.width; column += kLanes) {
        Isa::Store(floats + column, Isa::Load(floats + column) * Isa::Load(scales + column));
      }
    }
  }
}

template <class Isa>
void StoreSums(const PanelGemm& gemm, const std::byte* sums, int first_row, int num_rows) {
  for (int row = 0; row < num_rows; ++row) {
    const auto* from = reinterpret_cast<const float*>(sums + row * kSumStride);
    auto* out = reinterpret_cast<float*>(gemm.out + (first_row + row) * gemm.out_stride);
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      auto value = Isa::Load(from + column);
      if (gemm.bias != nullptr) value = value + Isa::LoadPartial(gemm.bias + column, count);
      if (gemm.epilogue == Epilogue::kAdd) value = Isa::LoadPartial(out + column, count) + value;
      Isa::StorePartial(out + column, value, count);
    }
  }
}

template <class Isa>
void StoreSiluMul(const PanelGemm& gemm, const std::byte* sums, int first_row, int num_rows) {
  const int half = gemm.weights.width / 2;
  for (int row = 0; row < num_rows; ++row) {
    const auto* gate = reinterpret_cast<const float*>(sums + row * kSumStride);
    std::byte* out = gemm.out + (first_row + row) * gemm.out_stride;
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      const auto value = Silu<Isa>(Isa::Load(gate + column)) * Isa::Load(gate + half + column);
      StoreActivations<Isa>(gemm.out_format, out, column, value, count);
    }
  }
}

template <class Isa, DotKind kKind>
void Finish(const PanelGemm& gemm, std::byte* sums, int first_row, int num_rows) {
  if (IsInteger(gemm.weights.format)) ScaleSums<Isa, kKind>(gemm, sums, first_row, num_rows);
  if (gemm.epilogue == Epilogue::kSiluMul) {
    StoreSiluMul<Isa>(gemm, sums, first_row, num_rows);
  } else {
    StoreSums<Isa>(gemm, sums, first_row, num_rows);
  }
}

}  // namespace convene::kernels::cpu
