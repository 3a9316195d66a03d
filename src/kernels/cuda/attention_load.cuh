// How queries, keys and values come to a block's shared memory, and where they lie there. Device
// code.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_forms.h"
#include "kernels/cuda/device_code.h"

namespace convene::kernels::cuda {

// Shared memory, in elements; rows are 16 bytes longer than they need be, so that eight of them
// meet different banks. Keys and values lie there twice: those used, and those that come.
template <int kForm, bool kLarge>
struct AttentionMemory {
  static constexpr AttentionForm kSizes = kAttentionForms[kForm];
  static constexpr AttentionTile kTile = kSizes.tile(kLarge);
  static constexpr int kKeyStride = kSizes.key_dim + 8;
  static constexpr int kValueStride = kSizes.value_in_key ? kKeyStride : kSizes.value_dim + 8;
  static constexpr int kRows = kTile.rows();
  static constexpr int kQueries = kRows * kKeyStride;
  static constexpr int kKeys = kKeysOfBlock * kKeyStride;
  static constexpr int kValues = kSizes.value_in_key ? 0 : kKeysOfBlock * kValueStride;
  // Scores that warps of the same rows exchange.
  static constexpr int kScores =
      kTile.column_warps > 1 ? 2 * kTile.row_warps * 16 * kKeysOfBlock : 0;
  static constexpr int kBytes = 2 * (kQueries + 2 * (kKeys + kValues) + kScores);
};

// kRows rows of `dim` elements to rows of kDim, kDim + 8 apart, the rest of which becomes zero, as
// do rows that are not `is_row`. at(row): where a row begins. Aligned: 16 bytes can be copied at
// once.
template <int kThreads, int kRows, int kDim, typename At, typename IsRow>
__device__ __forceinline__ void LoadRows(Bf16* to, int thread, bool is_aligned, int dim,
                                         const At& at, const IsRow& is_row) {
  if (is_aligned) {
#pragma unroll 2
    for (int i = thread; i < kRows * (kDim / 8); i += kThreads) {
      const int row = i / (kDim / 8);
      const int column = i % (kDim / 8) * 8;
      const bool valid = is_row(row) && column < dim;
      CopyAsync16(to + row * (kDim + 8) + column, at(valid ? row : 0) + (valid ? column : 0),
                  valid);
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < kRows * kDim; i += kThreads) {
      const int row = i / kDim;
      const int column = i % kDim;
      const bool valid = is_row(row) && column < dim;
      to[row * (kDim + 8) + column] = valid ? at(row)[column] : Bf16{0};
    }
  }
}

// The same of a whole block of keys or values, whose rows are kDim long and follow each other.
template <int kThreads, int kDim>
__device__ __forceinline__ void LoadWholeBlock(Bf16* to, int thread, const Bf16* from) {
  constexpr int kRowPieces = kDim / 8;
  constexpr int kPieces = kKeysOfBlock * kRowPieces;
  static_assert(kPieces % kThreads == 0);
  to += thread / kRowPieces * (kDim + 8) + thread % kRowPieces * 8;
  from += thread * 8;
#pragma unroll
  for (int step = 0; step < kPieces / kThreads; ++step) {
    // Where threads are not whole rows, rows' gaps come at other steps in other threads.
    const int whole = step * kThreads / kRowPieces * (kDim + 8);
    const int rest = step * kThreads % kRowPieces;
    const bool wraps = rest > 0 && thread % kRowPieces + rest >= kRowPieces;
    CopyAsync16(to + whole + rest * 8 + (wraps ? 8 : 0), from + step * kThreads * 8, true);
  }
}

// Keys or values of a block, `stride` elements apart: those of rows [first, end) are wanted.
struct BlockRows {
  const Bf16* from;
  int dim;
  int stride;
  int first;
  int end;
};
template <int kThreads, int kDim>
__device__ __forceinline__ void LoadBlockRows(Bf16* to, int thread, bool is_aligned,
                                              const BlockRows& rows) {
  if (is_aligned && rows.dim == kDim && rows.stride == kDim && rows.first <= 0 &&
      rows.end >= kKeysOfBlock) {
    LoadWholeBlock<kThreads, kDim>(to, thread, rows.from);
  } else {
    LoadRows<kThreads, kKeysOfBlock, kDim>(
        to, thread, is_aligned, rows.dim, [&](int row) { return rows.from + row * rows.stride; },
        [&](int row) { return row >= rows.first && row < rows.end; });
  }
}

}  // namespace convene::kernels::cuda
