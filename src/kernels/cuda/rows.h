// What is done to rows between the products: embedding, norms, RoPE and the way to the cache,
// sums, copies. What each must compute is kernels/reference/kernels.cc.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/kernel_set.h"

namespace convene::kernels::cuda {

// out row i (size floats, `stride` apart) = scale * row tokens[i] of table (bf16).
struct EmbedRows {
  const Bf16* table = nullptr;
  int64_t table_stride = 0;
  const int32_t* tokens = nullptr;  // (num_rows)
  int num_rows = 0;
  int size = 0;
  float scale = 1;
  float* out = nullptr;
  int64_t out_stride = 0;
};
void Embed(const EmbedRows& rows, StreamHandle stream);

// Normalised rows * weight, as bf16 (with zeros up to PaddedDepth(size)) and, where wanted, float.
struct NormRows {
  NormKind kind = NormKind::kRms;
  float epsilon = 0;
  const float* weight = nullptr;  // (size)
  int size = 0;
  int num_rows = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  Bf16* out = nullptr;  // or null
  int64_t out_stride = 0;
  float* out_float = nullptr;  // or null
  int64_t out_float_stride = 0;
};
inline constexpr int kMaxNormSize = 16384;
void Normalize(const NormRows& rows, StreamHandle stream);

// As KernelSet::prepare_qkv for rows of qkv, queries written as bf16 (num_heads, head_dim); then
// keys and values to the cache, or to rows of their own. qkv is changed in place or not, as suits.
// Position p of a row is in its block p / 64 at place p % 64. Masked places need not be zero:
// attention must not let what lies behind a sequence's last key into its sums, be it NaN. Where
// rows belong (angles, positions, blocks) may be read before the kernels enqueued earlier are done.
struct QkvRows {
  QkvShape shape = {};  // host pointers query_norm, key_norm are the device's here
  int num_rows = 0;
  const float* qkv = nullptr;  // (num_rows, heads * head_dim + kv_heads * (head_dim + value_dim))
  int64_t qkv_stride = 0;
  // Angles of row i: cosine and sine (rotary_dim / 2 each, one behind the other) at angles +
  // angle_rows[i] * rotary_dim.
  const float* angles = nullptr;
  const int32_t* angle_rows = nullptr;  // (num_rows)
  Bf16* queries = nullptr;
  int64_t query_stride = 0;
  const int32_t* positions = nullptr;     // (num_rows)
  const int32_t* row_blocks = nullptr;    // (num_rows) the block that holds the row's position
  std::byte* const* kv_blocks = nullptr;  // where blocks of the layer lie; layout: attention.h
  // Not null: keys and values go there, as floats, and not to the cache. (num_rows, kv_heads *
  // (head_dim + value_dim)), which may be where they are in qkv.
  float* kv_rows = nullptr;
  int64_t kv_row_stride = 0;
};
void PrepareQkv(const QkvRows& rows, StreamHandle stream);

// Keys and values of an encoder's output to the cache, as they are: no norm, no RoPE. kv (num_rows,
// kv_heads * (key_dim + value_dim)).
void StoreKv(const QkvRows& rows, StreamHandle stream);

// Row i of `out` = row from[i] (or i) of `x`; rows of `bytes` (a multiple of 16), as are addresses
// and strides. Where `out` is `x` itself, from[i] >= i; otherwise they do not overlap.
struct CopyRows {
  const void* x = nullptr;
  int64_t x_stride = 0;  // bytes
  const int32_t* from = nullptr;
  int num_rows = 0;
  int64_t bytes = 0;
  void* out = nullptr;
  int64_t out_stride = 0;  // bytes
};
void Copy(const CopyRows& rows, StreamHandle stream);

// *all_finite (int32) becomes 0 where any of the rows holds NaN or infinity; nothing otherwise.
void LookForNotFinite(const float* x, int64_t stride, int num_rows, int size, int32_t* all_finite,
                      StreamHandle stream);

// Of each row the largest element, the lowest index of equal ones: keys[row] (0 before) becomes a
// key that LargestOf reads.
struct LargestRows {
  const float* x = nullptr;
  int64_t stride = 0;
  int num_rows = 0;
  int size = 0;
  unsigned long long* keys = nullptr;  // (num_rows); as CUDA's atomics name 64 bits
};
void FindLargest(const LargestRows& rows, StreamHandle stream);
inline constexpr unsigned long long kNotFiniteKey = ~0ull;
// The element's index; less than 0: one of the row is NaN or infinite.
constexpr int32_t LargestOf(unsigned long long key) {
  return key == kNotFiniteKey ? -1 : static_cast<int32_t>(0xffffffffu - (key & 0xffffffffu));
}

// Weights from the CPU's packed form (packed_matrix.h, kBf16), as it lies, to rows of `to`: row i
// to row i, or, gated (pack.h: each panel gate rows, then as many up rows), where product.h's
// interleaving has it. Columns beyond cols and up to row_stride become zero.
struct UnpackPanels {
  const std::byte* packed = nullptr;  // all panels of a matrix, one behind the other
  int rows = 0;
  int cols = 0;
  bool is_gated = false;
  Bf16* to = nullptr;
  int64_t row_stride = 0;  // PaddedDepth(cols) or more
  // Rows of `to` up to a multiple of kWeightRows become zero; of a gated matrix they always do.
  bool pads_rows = true;
};
void Unpack(const UnpackPanels& panels, StreamHandle stream);

// Uniform values of variance scale * scale around zero: weights for measurements. The same for the
// same seed.
void FillRandom(Bf16* to, int64_t count, uint64_t seed, float scale, StreamHandle stream);

}  // namespace convene::kernels::cuda
