// The operators of a forward pass as one table of functions per instruction set. Kernels take views
// and caller-owned scratch; they never allocate, log or start threads (that is grouped_gemm.h).
//
// "Activations" are what a GEMM multiplies with the weights: bf16 beside bf16 weights, float beside
// float32 weights. Rows of activations are padded to kActivationPadding elements with zeros.
// Each function's result for a row depends on nothing but that row's inputs: not on how many rows
// come together (docs/decisions/0001-numerics.md).
//
// Sources compiled for one instruction set include this, so it includes little: an inline function
// of a library, compiled for AVX-512, must not be what the linker keeps for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_matrix.h"

namespace convene::kernels {

inline constexpr int kActivationPadding = 32;  // elements

constexpr int PaddedActivations(int count) {
  return (count + kActivationPadding - 1) / kActivationPadding * kActivationPadding;
}

constexpr size_t ActivationBytes(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : 2;
}

enum class Epilogue {
  kStore,    // out float  = product + bias
  kAdd,      // out float += product + bias
  kSiluMul,  // the panel is gate rows, then as many up rows: out activations = silu(gate) * up
};

// out[i][0 .. columns) from activation row i (depth) and one panel of a packed matrix.
struct PanelGemm {
  WeightFormat format = WeightFormat::kBf16;
  const std::byte* panel = nullptr;
  int width = 0;                      // packed rows of the panel: 16, 32, 48 or 64
  int depth = 0;                      // columns of the weight matrix
  const void* const* rows = nullptr;  // (num_rows) pointers to activations (depth)
  int num_rows = 0;
  Epilogue epilogue = Epilogue::kStore;
  int columns = 0;              // output columns to write, at most width (kSiluMul: width / 2)
  std::byte* out = nullptr;     // of row 0
  int64_t out_stride = 0;       // bytes from row to row
  const float* bias = nullptr;  // (columns) or null
  // Memory that the calling thread will read next, pulled into its cache meanwhile; or null.
  const std::byte* next = nullptr;
  size_t next_bytes = 0;
};

enum class NormKind { kRms, kLayer };

// out = normalised x * weight, as activations and (where given) as float.
struct Norm {
  NormKind kind = NormKind::kRms;
  WeightFormat format = WeightFormat::kBf16;
  float epsilon = 0;
  const float* weight = nullptr;  // (size)
  int size = 0;
};

enum class QkNormKind { kNone, kPerHead, kWholeProjection };

// What a layer does between the QKV projection and the attention scores.
struct QkvShape {
  WeightFormat format = WeightFormat::kBf16;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;
  QkNormKind norm = QkNormKind::kNone;
  float epsilon = 0;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float clip = 0;  // 0: none
};

// A block of the KV cache holds kKvBlockTokens positions of one KV head: the keys packed as a panel
// of kKvBlockTokens rows and head_dim columns, then the values packed as panels of head_dim rows
// and kKvBlockTokens columns, so that both products of attention are the panel GEMM.
inline constexpr int kKvBlockTokens = kPanelRows;

size_t KeyBlockBytes(WeightFormat format, int head_dim);
size_t ValueBlockBytes(WeightFormat format, int head_dim);

// One token: qkv (query_dim + 2 kv_dim) float, changed in place by norm, clip and RoPE, then
// written out: queries as activations, head h at `queries` + h * PaddedActivations(head_dim);
// key and value into position `slot` of the block at `kv_block` + h * kv_head_stride (bytes).
struct QkvToken {
  float* qkv = nullptr;
  const float* cosine = nullptr;  // (rotary_dim / 2), times the attention factor
  const float* sine = nullptr;
  std::byte* queries = nullptr;
  std::byte* kv_block = nullptr;
  int64_t kv_head_stride = 0;
  int slot = 0;
};

// Attention of consecutive tokens of one sequence, for query heads that share one KV head.
// At most kAttentionRows = num_tokens * num_heads rows.
struct Attention {
  WeightFormat format = WeightFormat::kBf16;
  int head_dim = 0;
  float scale = 0;
  int window = 0;  // 0: none
  int num_tokens = 0;
  int num_heads = 0;
  int first_position = 0;  // of the first token
  const std::byte* queries = nullptr;
  int64_t query_token_stride = 0;  // bytes
  int64_t query_head_stride = 0;   // bytes
  const std::byte* kv = nullptr;   // block b of this head is at kv + blocks[b] * kv_block_stride
  const int32_t* blocks = nullptr;
  int64_t kv_block_stride = 0;   // bytes
  std::byte* out = nullptr;      // activations (num_tokens, num_heads, head_dim)
  int64_t out_token_stride = 0;  // bytes
  int64_t out_head_stride = 0;   // bytes
  std::byte* scratch = nullptr;  // AttentionScratchBytes(head_dim), 64-byte aligned
};

inline constexpr int kAttentionRows = 48;
// Keys whose softmax is one unit; units are merged in the order of their absolute positions.
inline constexpr int kSpanTokens = 512;

size_t AttentionScratchBytes(int head_dim);

// out += the sum of `count` rows weighted by `weights`, in the order of `merges`: row
// merges[i].into
// += row merges[i].from; after the last merge row 0 holds the sum (route.h makes them).
struct Merge {
  int16_t into = 0;
  int16_t from = 0;
};
inline constexpr int kMaxTopK = 64;

struct Combine {
  const float* const* rows = nullptr;  // (count) pointers to rows (size)
  const float* weights = nullptr;      // (count)
  const Merge* merges = nullptr;       // (count - 1)
  int count = 0;
  const float* shared = nullptr;  // (size) the shared expert's row, or null
  float shared_weight = 1;
  float* out = nullptr;  // (size)
  int size = 0;
};

struct KernelSet {
  const char* name;  // as hardware::IsaName
  void (*gemm)(const PanelGemm&);
  // x (size) float; out_activations and out_float may be null, not both.
  void (*normalize)(const Norm&, const float* x, void* out_activations, float* out_float);
  void (*prepare_qkv)(const QkvShape&, const QkvToken&);
  void (*attend)(const Attention&);
  void (*combine)(const Combine&);
};

}  // namespace convene::kernels
