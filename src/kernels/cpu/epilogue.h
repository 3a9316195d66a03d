// What follows the sums of a panel GEMM: scales of integer weights, bias, addition to the residual
// stream, or an activation function.
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
  const float scale = gemm.parameters.scale;
  for (int row = 0; row < num_rows; ++row) {
    const auto* from = reinterpret_cast<const float*>(sums + row * kSumStride);
    auto* out = reinterpret_cast<float*>(gemm.out + (first_row + row) * gemm.out_stride);
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      auto value = Isa::Load(from + column);
      if (gemm.bias != nullptr) value = value + Isa::LoadPartial(gemm.bias + column, count);
      if (scale != 1.0f) value = value * Isa::Broadcast(scale);
      if (gemm.epilogue == Epilogue::kAdd) value = Isa::LoadPartial(out + column, count) + value;
      Isa::StorePartial(out + column, value, count);
    }
  }
}

template <class Isa>
void StoreRelu(const PanelGemm& gemm, const std::byte* sums, int first_row, int num_rows) {
  for (int row = 0; row < num_rows; ++row) {
    const auto* from = reinterpret_cast<const float*>(sums + row * kSumStride);
    std::byte* out = gemm.out + (first_row + row) * gemm.out_stride;
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      auto value = Isa::Load(from + column);
      if (gemm.bias != nullptr) value = value + Isa::LoadPartial(gemm.bias + column, count);
      StoreActivations<Isa>(gemm.out_format, out, column, Isa::Max(value, Isa::Zero()), count);
    }
  }
}

template <class Isa>
inline typename Isa::Floats ClampedSwiglu(const EpilogueParameters& parameters,
                                          typename Isa::Floats gate, typename Isa::Floats up) {
  const auto limit = Isa::Broadcast(parameters.limit);
  const auto one = Isa::Broadcast(1.0f);
  gate = Isa::Min(gate, limit);
  up = Isa::Min(Isa::Max(up, Isa::Zero() - limit), limit);
  const auto power = Exp<Isa>(gate * Isa::Broadcast(-parameters.alpha));
  return gate / (one + power) * (up + one);
}

template <class Isa>
void StoreGated(const PanelGemm& gemm, const std::byte* sums, int first_row, int num_rows) {
  const int half = gemm.weights.width / 2;
  for (int row = 0; row < num_rows; ++row) {
    const auto* from = reinterpret_cast<const float*>(sums + row * kSumStride);
    std::byte* out = gemm.out + (first_row + row) * gemm.out_stride;
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      auto gate = Isa::Load(from + column);
      auto up = Isa::Load(from + half + column);
      if (gemm.bias != nullptr) {
        gate = gate + Isa::Load(gemm.bias + column);
        up = up + Isa::Load(gemm.bias + half + column);
      }
      const auto value = gemm.epilogue == Epilogue::kSiluMul
                             ? Silu<Isa>(gate) * up
                             : ClampedSwiglu<Isa>(gemm.parameters, gate, up);
      StoreActivations<Isa>(gemm.out_format, out, column, value, count);
    }
  }
}

template <class Isa, DotKind kKind>
void Finish(const PanelGemm& gemm, std::byte* sums, int first_row, int num_rows) {
  if (IsInteger(gemm.weights.format)) ScaleSums<Isa, kKind>(gemm, sums, first_row, num_rows);
  if (IsGated(gemm.epilogue)) {
    StoreGated<Isa>(gemm, sums, first_row, num_rows);
  } else if (gemm.epilogue == Epilogue::kRelu) {
    StoreRelu<Isa>(gemm, sums, first_row, num_rows);
  } else {
    StoreSums<Isa>(gemm, sums, first_row, num_rows);
  }
}

}  // namespace convene::kernels::cpu
