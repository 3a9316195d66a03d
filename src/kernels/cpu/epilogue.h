// What follows the sums of a panel GEMM: scales of integer weights, bias, addition to the residual
// stream, or an activation function. One sweep: sums are scaled as they are read, since a second
// look at each would cost as much as all the rest (docs/results/int_gemm.md).
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/math.h"

namespace convene::kernels::cpu {

// The sums of rows [first_row, ...) of a GEMM, as floats. The order of the factors is part of the
// specification: with it all instruction sets give the same bits for int8 activations.
template <class Isa, DotKind kKind>
class FinishedSums {
 public:
  using Floats = typename Isa::Floats;

  FinishedSums(const PanelGemm& gemm, const std::byte* sums, int first_row)
      : sums_(sums),
        scales_(IsInteger(gemm.weights.format) ? gemm.weights.scales() : nullptr),
        end_(reinterpret_cast<const std::byte*>(RowEnd(gemm.rows, gemm.weights.padded())) +
             first_row * gemm.row_stride),
        row_stride_(gemm.row_stride) {}

  // Before At: which row, counted from first_row.
  [[gnu::always_inline]] void BeginRow(int row) {
    at_ = sums_ + row * kSumStride;
    if constexpr (kKind == DotKind::kInt8) {
      const auto& end = *reinterpret_cast<const Int8RowEnd*>(end_ + row * row_stride_);
      bias_ = StoredBias(end);
      row_scale_ = Isa::Broadcast(end.scale);
    }
  }

  // Columns [column, column + kLanes) of the row.
  [[gnu::always_inline]] Floats At(int column) const {
    if constexpr (kKind == DotKind::kInt8) {
      return Isa::FloatsFromSums(at_ + column * 4, bias_) * Isa::Load(scales_ + column) *
             row_scale_;
    } else {
      const auto value = Isa::Load(reinterpret_cast<const float*>(at_) + column);
      if constexpr (kKind == DotKind::kF32) return value;
      return scales_ != nullptr ? value * Isa::Load(scales_ + column) : value;
    }
  }

 private:
  const std::byte* sums_;
  const float* scales_;
  const std::byte* end_;
  int64_t row_stride_;
  const std::byte* at_ = nullptr;
  int32_t bias_ = 0;
  Floats row_scale_ = {};
};

template <class Isa, DotKind kKind>
void StoreSums(const PanelGemm& gemm, FinishedSums<Isa, kKind> sums, int first_row, int num_rows) {
  const int64_t out_stride = gemm.out_stride;
  std::byte* out_row = gemm.out + first_row * out_stride;
  const int columns = gemm.columns;
  const float* bias = gemm.bias;
  const float scale = gemm.parameters.scale;
  if (gemm.epilogue == Epilogue::kStore && bias == nullptr && scale == 1 && columns == kPanelRows) {
    const bool streamed = gemm.streams_out;
    for (int row = 0; row < num_rows; ++row, out_row += out_stride) {
      sums.BeginRow(row);
      auto* out = reinterpret_cast<float*>(out_row);
#pragma GCC unroll 4
      for (int column = 0; column < kPanelRows; column += kLanes) {
        if (streamed) {
          Isa::StoreStreamed(out + column, sums.At(column));
        } else {
          Isa::Store(out + column, sums.At(column));
        }
      }
    }
    return;
  }
  const bool add = gemm.epilogue == Epilogue::kAdd;
  for (int row = 0; row < num_rows; ++row, out_row += out_stride) {
    sums.BeginRow(row);
    auto* out = reinterpret_cast<float*>(out_row);
    for (int column = 0; column < columns; column += kLanes) {
      const int count = columns - column < kLanes ? columns - column : kLanes;
      auto value = sums.At(column);
      if (bias != nullptr) value = value + Isa::LoadPartial(bias + column, count);
      if (scale != 1.0f) value = value * Isa::Broadcast(scale);
      if (add) value = Isa::LoadPartial(out + column, count) + value;
      Isa::StorePartial(out + column, value, count);
    }
  }
}

template <class Isa, DotKind kKind>
void StoreRelu(const PanelGemm& gemm, FinishedSums<Isa, kKind> sums, int first_row, int num_rows) {
  for (int row = 0; row < num_rows; ++row) {
    sums.BeginRow(row);
    std::byte* out = gemm.out + (first_row + row) * gemm.out_stride;
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      auto value = sums.At(column);
      if (gemm.bias != nullptr) value = value + Isa::LoadPartial(gemm.bias + column, count);
      StoreActivations<Isa>(gemm.out_format, out, column, Isa::Max(Isa::Zero(), value), count);
    }
  }
}

template <class Isa>
inline typename Isa::Floats ClampedSwiglu(const EpilogueParameters& parameters,
                                          typename Isa::Floats gate, typename Isa::Floats up) {
  const auto limit = Isa::Broadcast(parameters.limit);
  const auto one = Isa::Broadcast(1.0f);
  gate = Isa::Min(limit, gate);
  up = Isa::Min(limit, Isa::Max(Isa::Zero() - limit, up));
  const auto power = Exp<Isa>(gate * Isa::Broadcast(-parameters.alpha));
  return gate / (one + power) * (up + one);
}

// activate(gate, up) of each output.
template <class Isa, DotKind kKind, class Activate>
void StoreGated(const PanelGemm& gemm, FinishedSums<Isa, kKind> sums, int first_row, int num_rows,
                Activate activate) {
  const int half = gemm.weights.width / 2;
  const int columns = gemm.columns;
  const float* bias = gemm.bias;
  const ActivationFormat format = gemm.out_format;
  const int64_t out_stride = gemm.out_stride;
  std::byte* out = gemm.out + first_row * out_stride;
  for (int row = 0; row < num_rows; ++row, out += out_stride) {
    sums.BeginRow(row);
    for (int column = 0; column < columns; column += kLanes) {
      auto gate = sums.At(column);
      auto up = sums.At(half + column);
      if (bias != nullptr) {
        gate = gate + Isa::Load(bias + column);
        up = up + Isa::Load(bias + half + column);
      }
      const int count = columns - column < kLanes ? columns - column : kLanes;
      StoreActivations<Isa>(format, out, column, activate(gate, up), count);
    }
  }
}

// sums (num_rows, at kSumStride) of rows [first_row, first_row + num_rows) of the GEMM.
template <class Isa, DotKind kKind>
void Finish(const PanelGemm& gemm, const std::byte* sums, int first_row, int num_rows) {
  using Floats = typename Isa::Floats;
  const FinishedSums<Isa, kKind> finished(gemm, sums, first_row);
  switch (gemm.epilogue) {
    case Epilogue::kStore:
    case Epilogue::kAdd:
      return StoreSums<Isa, kKind>(gemm, finished, first_row, num_rows);
    case Epilogue::kRelu:
      return StoreRelu<Isa, kKind>(gemm, finished, first_row, num_rows);
    case Epilogue::kSiluMul:
      return StoreGated<Isa, kKind>(gemm, finished, first_row, num_rows,
                                    [](Floats gate, Floats up) { return Silu<Isa>(gate) * up; });
    case Epilogue::kClampedSwiglu:
      return StoreGated<Isa, kKind>(
          gemm, finished, first_row, num_rows,
          [&](Floats gate, Floats up) { return ClampedSwiglu<Isa>(gemm.parameters, gate, up); });
  }
}

}  // namespace convene::kernels::cpu
