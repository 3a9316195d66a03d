// What of a way of reading panels acts on which product, as gemm.h reads it: KernelSet::acting.
// Whoever changes what is read there changes it here; acting_way_test.cc compares both.
#pragma once

#include "kernels/cpu/gemm.h"

namespace convene::kernels::cpu {

// Of weights that are multiplied as they lie, step by step.
template <class Isa, DotKind kKind>
void KeepWhatStepsRead(const PanelStreaming& way, int num_rows, PanelStreaming* acting) {
  constexpr bool kOnVectors = !Isa::template kMatrixTiles<kKind>;
  constexpr bool kReadsHalves = kOnVectors && Isa::kLoadsHalfLines && kHoldsWholePanel<Isa, kKind>;
  if (num_rows > MostStreamedRows<Isa, kKind>()) {
    acting->fetches_next = way.fetches_next;
    acting->half_lines = kReadsHalves && way.half_lines && !way.fetches_next;
    return;
  }
  // Beside several streams these act on panels that are left over, alone.
  constexpr int64_t kStepBytes = int64_t{4} * kPanelRows;
  acting->ahead_bytes = static_cast<int>(AheadSteps<Isa, kKind>(way, kStepBytes) * kStepBytes);
  acting->half_lines = kReadsHalves && way.half_lines;
  if (kOnVectors && way.own_shares && way.streams > 1) {
    acting->streams = way.streams;
    acting->piece_bytes = way.piece_bytes;
  }
}

template <class Isa>
void KeepWhatInt4Reads(const PanelStreaming& way, int num_rows, PanelStreaming* acting) {
  const bool as_they_lie = num_rows <= Isa::kMostInt4DotRows;
  bool by_streamed_tiles = false;
  if constexpr (Isa::template kMatrixTiles<DotKind::kInt8>) {
    by_streamed_tiles = num_rows <= Isa::kTileWidth;
  }
  if (!as_they_lie && !by_streamed_tiles) {
    acting->fetches_next = way.fetches_next;
    return;
  }
  acting->ahead_bytes = way.ahead_bytes;
  if (as_they_lie && num_rows <= kInt4DotRows && way.own_shares) acting->streams = way.streams;
}

template <class Isa>
PanelStreaming ActingWay(const PanelStreaming& way, WeightFormat weights,
                         ActivationFormat activations, int num_rows) {
  PanelStreaming acting{
      .ahead_bytes = 0, .fetches_next = false, .own_shares = way.own_shares, .streams = 1};
  if (IsInteger(weights) && activations != ActivationFormat::kInt8) {
    acting.fetches_next = way.fetches_next;  // they are unpacked
    return acting;
  }
  switch (weights) {
    case WeightFormat::kF32:
      KeepWhatStepsRead<Isa, DotKind::kF32>(way, num_rows, &acting);
      break;
    case WeightFormat::kBf16:
      KeepWhatStepsRead<Isa, DotKind::kBf16>(way, num_rows, &acting);
      break;
    case WeightFormat::kInt8:
      KeepWhatStepsRead<Isa, DotKind::kInt8>(way, num_rows, &acting);
      break;
    case WeightFormat::kInt4:
      KeepWhatInt4Reads<Isa>(way, num_rows, &acting);
      break;
  }
  return acting;
}

}  // namespace convene::kernels::cpu
