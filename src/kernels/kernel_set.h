// The operators of a forward pass as one table of functions per instruction set. Kernels take views
// and caller-owned scratch; they never allocate, log or start threads (that is grouped_gemm.h).
//
// Weights are float32, bf16 or integers with scales (packed_matrix.h), activations float32, bf16 or
// int8 (activation_row.h). What goes together: f32 with f32; bf16 with bf16; int8 and int4 with
// int8 or bf16. Each function's result for a row depends on nothing but that row's inputs: not on
// how many rows come together (docs/decisions/0001-numerics.md).
//
// Sources compiled for one instruction set include this, so it includes little: an inline function
// of a library, compiled for AVX-512, must not be what the linker keeps for everybody. Its own
// inline functions are always inlined for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/activation_row.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_streaming.h"
#include "tensor/operator_kinds.h"

namespace convene::kernels {

// What becomes of a sum p = product + bias.
enum class Epilogue {
  kStore,  // out float  = p * scale
  kAdd,    // out float += p * scale
  kRelu,   // out activations = max(p, 0)
  // The panel is gate rows, then as many up rows; g and u are their sums.
  kSiluMul,        // out activations = silu(g) * u
  kClampedSwiglu,  // out activations = g' sigmoid(alpha g') (u' + 1), g' = min(g, limit), u' = u
                   // clamped to [-limit, limit]
};

[[gnu::always_inline]] constexpr bool IsGated(Epilogue epilogue) {
  return epilogue == Epilogue::kSiluMul || epilogue == Epilogue::kClampedSwiglu;
}
[[gnu::always_inline]] constexpr bool MakesActivations(Epilogue epilogue) {
  return IsGated(epilogue) || epilogue == Epilogue::kRelu;
}

struct EpilogueParameters {
  float scale = 1;  // kStore, kAdd
  float limit = 0;  // kClampedSwiglu
  float alpha = 0;  // kClampedSwiglu
};

// out[i][0 .. columns) from activation row i and one panel of a packed matrix. A row's result is
// the same whatever comes with it: the sums of one output are one chain along the depth (float), or
// whole numbers (int8 activations: then they are the same on all instruction sets, too).
struct PanelGemm {
  PackedPanel weights;
  // So many panels of this width, one behind the other in memory, the first of which the rest of
  // this describes; at most kMostPanels.
  int num_panels = 1;
  ActivationFormat activations = ActivationFormat::kBf16;
  const std::byte* rows = nullptr;  // (num_rows) activations
  int64_t row_stride = 0;           // bytes from row to row
  int num_rows = 0;
  Epilogue epilogue = Epilogue::kStore;
  EpilogueParameters parameters = {};
  // Where activations are made: kF32 or kBf16.
  ActivationFormat out_format = ActivationFormat::kF32;
  int columns = 0;           // output columns to write, at most width (gated: width / 2)
  std::byte* out = nullptr;  // of row 0
  int64_t out_stride = 0;    // bytes from row to row
  // kStore of a whole panel's sums as they are, without bias or scale, to whole lines (`out` and
  // its stride are multiples of 64): more than the caches hold until it is read, so that it may go
  // past them. The kernel orders it before whatever its thread does next.
  bool streams_out = false;
  const float* bias = nullptr;  // (columns; gated: width), as the panel's rows, or null
  // Memory that the calling thread will read next, pulled into its cache meanwhile; or null.
  const std::byte* next = nullptr;
  size_t next_bytes = 0;
  PanelStreaming streaming = {};
  std::byte* scratch = nullptr;  // kGemmScratchBytes, 64-byte aligned, of the calling thread
};

inline constexpr int kMostPanels = 32;

// The panel of that index, alone, and the one behind it as the next.
[[gnu::always_inline]] inline PanelGemm PanelOf(const PanelGemm& gemm, int index) {
  PanelGemm panel = gemm;
  const auto bytes = static_cast<int64_t>(gemm.weights.size_bytes());
  const int64_t element =
      MakesActivations(gemm.epilogue) ? ElementBytes(gemm.out_format) : int64_t{sizeof(float)};
  panel.num_panels = 1;
  panel.weights.data += index * bytes;
  panel.out += index * gemm.columns * element;
  if (gemm.bias != nullptr) panel.bias += index * gemm.weights.width;
  if (index + 1 < gemm.num_panels) {
    panel.next = panel.weights.data + bytes;
    panel.next_bytes = gemm.weights.values_bytes();
  }
  return panel;
}

// Compressed weights are unpacked so many columns at a time, for so many rows at a time.
inline constexpr int kUnpackedDepth = 512;
inline constexpr int kUnpackedRows = 256;
inline constexpr int64_t kGemmScratchBytes =
    int64_t{2} * kUnpackedDepth * kPanelRows + int64_t{4} * kUnpackedRows * kPanelRows;

using tensor::NormKind;
using tensor::QkNorm;

// out = normalised x * weight, as activations and (where given; always for kInt8) as float.
struct Norm {
  NormKind kind = NormKind::kRms;
  ActivationFormat format = ActivationFormat::kBf16;
  float epsilon = 0;
  const float* weight = nullptr;  // (size)
  int size = 0;
};

// What the KV cache holds. Attention computes in float32 beside kF32, otherwise in bf16.
enum class KvFormat { kF32, kBf16, kInt8 };

[[gnu::always_inline]] constexpr ActivationFormat QueryFormat(KvFormat format) {
  return format == KvFormat::kF32 ? ActivationFormat::kF32 : ActivationFormat::kBf16;
}

// Elements of a head's query, padded with zeros.
[[gnu::always_inline]] constexpr int PaddedHead(int head_dim) { return (head_dim + 31) / 32 * 32; }

// What a layer does between the QKV projection and the attention scores. Without heads of a kind
// nothing is done for it.
struct QkvShape {
  KvFormat format = KvFormat::kBf16;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;    // of queries and keys
  int value_dim = 0;   // of values; 0: there are none
  int rotary_dim = 0;  // leading elements of a head that RoPE turns; 0: none
  QkNorm norm = QkNorm::kNone;
  float epsilon = 0;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float clip = 0;  // 0: none
};

// A block of the KV cache holds kKvBlockTokens positions of one KV head: the keys as a panel of
// kKvBlockTokens rows and key_dim columns, then the values as panels of value_dim rows and
// kKvBlockTokens columns, laid out as bf16 or float32 weights are (but without padding to
// kDepthPadding), so that both products of attention are tiles of the GEMM. kInt8 holds bytes where
// kBf16 holds bf16, and behind the keys and behind the values [kKvBlockTokens] float scales.
// Where values are a part of the keys (a latent), there are only keys.
inline constexpr int kKvBlockTokens = kPanelRows;

inline constexpr int kMaxHeadDim = 1024;

[[gnu::always_inline]] constexpr int64_t KvElementBytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : format == KvFormat::kBf16 ? 2 : 1;
}
[[gnu::always_inline]] constexpr int64_t KvScalesBytes(KvFormat format) {
  return format == KvFormat::kInt8 ? 4 * kKvBlockTokens : 0;
}
[[gnu::always_inline]] constexpr int64_t KeyBlockBytes(KvFormat format, int key_dim) {
  const int64_t padded = format == KvFormat::kF32 ? key_dim : (key_dim + 1) / 2 * 2;
  return KvElementBytes(format) * kKvBlockTokens * padded + KvScalesBytes(format);
}
[[gnu::always_inline]] constexpr int64_t ValueBlockBytes(KvFormat format, int value_dim) {
  const int64_t padded = (value_dim + kLanes - 1) / kLanes * kLanes;
  return KvElementBytes(format) * kKvBlockTokens * padded + KvScalesBytes(format);
}
// kInt8: the scales of the keys and of the values of a block.
[[gnu::always_inline]] inline float* KeyScales(std::byte* keys, int key_dim) {
  return reinterpret_cast<float*>(keys + KeyBlockBytes(KvFormat::kInt8, key_dim)) - kKvBlockTokens;
}
[[gnu::always_inline]] inline float* ValueScales(std::byte* values, int value_dim) {
  return reinterpret_cast<float*>(values + ValueBlockBytes(KvFormat::kInt8, value_dim)) -
         kKvBlockTokens;
}

// One token: qkv (queries, keys, values of all heads) float, changed in place by norm, clip and
// RoPE; then the queries written out as activations, head h at `queries` + h * PaddedHead(head_dim)
// elements.
struct QkvToken {
  float* qkv = nullptr;
  const float* cosine = nullptr;  // (rotary_dim / 2), times the attention factor
  const float* sine = nullptr;
  std::byte* queries = nullptr;
};

// Keys (key_dim) and values (value_dim; 0: none) of consecutive positions, to be stored as
// positions [first_slot, first_slot + num_rows) of a block. A key is shared_dim elements of
// `shared`, then the rest of `keys`. Position 0 begins a block: all others become zero, since a
// masked position has probability zero, and zero times what a former owner left there need not be
// zero. Positions are stored in their order: behind those stored there may be zeros.
struct KvRows {
  KvFormat format = KvFormat::kBf16;
  int key_dim = 0;
  int value_dim = 0;
  int shared_dim = 0;
  int first_slot = 0;
  int num_rows = 0;
  const float* shared = nullptr;  // row i at shared + i * shared_stride, as are the others
  const float* keys = nullptr;
  const float* values = nullptr;
  int64_t shared_stride = 0;  // floats
  int64_t key_stride = 0;
  int64_t value_stride = 0;
  std::byte* block = nullptr;
};

[[gnu::always_inline]] constexpr int64_t KvBlockBytes(const KvRows& rows) {
  return KeyBlockBytes(rows.format, rows.key_dim) +
         (rows.value_dim > 0 ? ValueBlockBytes(rows.format, rows.value_dim) : 0);
}

// The keys of a block as rows of floats: key `slot` at out + slot * out_stride.
struct KeyRows {
  KvFormat format = KvFormat::kBf16;
  int key_dim = 0;
  int num_slots = 0;
  std::byte* block = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;  // floats
};

// What is added to a score by the distance of its key from its query (key minus query, before the
// scale). Of head h and distance d, at most `reach` either way: table[h * head_stride + kLanes +
// reach + d]; further away the values at the ends hold, which the kLanes entries before and behind
// repeat.
struct DistanceBias {
  const float* table = nullptr;  // null: nothing is added
  int64_t head_stride = 0;       // 2 * reach + 1 + 2 * kLanes or more
  int reach = 0;
};

// Attention of consecutive tokens of one sequence, for query heads that share one KV head.
// At most kAttentionRows = num_tokens * num_heads rows.
struct Attention {
  KvFormat format = KvFormat::kBf16;
  ActivationFormat out_format = ActivationFormat::kBf16;  // kF32 or kBf16
  int key_dim = 0;
  int value_dim = 0;
  // Where blocks hold keys only: a value is the value_dim elements of its key from here on (even).
  // Less than 0: blocks hold values.
  int value_in_key = -1;
  float scale = 0;
  int window = 0;                // 0: none
  int num_keys = 0;              // 0: causal; otherwise every query sees this many keys
  const float* sinks = nullptr;  // (num_heads) scores of keys without values, or null
  DistanceBias bias = {};        // of the first head on
  int num_tokens = 0;
  int num_heads = 0;
  int first_position = 0;  // of the first token
  const std::byte* queries = nullptr;
  int64_t query_token_stride = 0;  // bytes
  int64_t query_head_stride = 0;   // bytes
  // Block i of the sequence is at kv_blocks[blocks[i]], this head's part of it at kv_offset: where
  // a block lies is the table's matter alone.
  std::byte* const* kv_blocks = nullptr;
  const int32_t* blocks = nullptr;
  int64_t kv_offset = 0;         // bytes
  std::byte* out = nullptr;      // activations (num_tokens, num_heads, value_dim)
  int64_t out_token_stride = 0;  // bytes
  int64_t out_head_stride = 0;   // bytes
  std::byte* scratch = nullptr;  // AttentionScratchBytes(key_dim, value_dim), 64-byte aligned
};

inline constexpr int kAttentionRows = 96;
// Keys whose softmax is one unit; units are merged in the order of their absolute positions.
inline constexpr int kSpanTokens = 512;

size_t AttentionScratchBytes(int key_dim, int value_dim);

// Keys [0, EndKey) are those that the last of the call's queries sees, but for its window.
[[gnu::always_inline]] constexpr int EndKey(const Attention& a) {
  return a.num_keys > 0 ? a.num_keys : a.first_position + a.num_tokens;
}
// The spans that a call's queries see are [FirstSpan, EndSpan). They may be computed one by one, by
// different threads, and folded afterwards in their order: the same sums as `attend` makes.
[[gnu::always_inline]] constexpr int FirstSpan(const Attention& a) {
  return a.window > 0 && a.first_position >= a.window
             ? (a.first_position - a.window + 1) / kSpanTokens
             : 0;
}
[[gnu::always_inline]] constexpr int EndSpan(const Attention& a) {
  return (EndKey(a) - 1) / kSpanTokens + 1;
}
// Of one row of one span by itself: maximum and sum, and from kLanes on the outputs.
[[gnu::always_inline]] constexpr int SpanRowFloats(int value_dim) {
  return kLanes + (value_dim + kLanes - 1) / kLanes * kLanes;
}

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
  float scale = 1;       // of what is added
  float* out = nullptr;  // (size)
  int size = 0;
};

class StreamingChoice;

struct KernelSet {
  const char* name;  // as hardware::IsaName
  // How panels are read (streaming_choice.h), kept alive by whoever sets it; null: as is best on
  // CPUs of this one's kind.
  const StreamingChoice* streaming = nullptr;
  void (*gemm)(const PanelGemm&);
  // What of `way` acts on whole panels with so many rows of each matrix; the rest becomes 0, false
  // or a default. Ways of which the same is left give the same instructions.
  PanelStreaming (*acting)(const PanelStreaming& way, WeightFormat, ActivationFormat, int num_rows);
  // x (size) float, as an int8 row: symmetric, the largest magnitude becomes 127.
  void (*quantize)(const float* x, int size, void* out);
  // x (size) float; out_activations and out_float may be null, not both.
  void (*normalize)(const Norm&, const float* x, void* out_activations, float* out_float);
  // x (size) as float or bf16, then zeros up to `padded` elements.
  void (*convert)(ActivationFormat format, const float* x, int size, int padded, void* out);
  void (*prepare_qkv)(const QkvShape&, const QkvToken&);
  void (*store_kv)(const KvRows&);
  void (*load_keys)(const KeyRows&);
  void (*attend)(const Attention&);
  // The same in two steps: each span to `partial` (num_tokens * num_heads, SpanRowFloats), then all
  // of them, (EndSpan - FirstSpan) times that, to the output.
  void (*attend_span)(const Attention&, int span, float* partial);
  void (*merge_spans)(const Attention&, const float* partials);
  void (*combine)(const Combine&);
};

}  // namespace convene::kernels
