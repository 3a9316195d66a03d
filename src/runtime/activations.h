// The buffers of a forward pass, sized once for the largest step. Rows of activations are laid out
// as kernels/activation_row.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "hardware/huge_buffer.h"
#include "kernels/kernel_set.h"
#include "model/model_spec.h"

namespace convene::runtime {

// (rows, stride_bytes) of activations or floats.
struct RowBuffer {
  std::byte* data = nullptr;
  int64_t stride_bytes = 0;

  std::byte* row(int64_t row_idx) const { return data + row_idx * stride_bytes; }
  RowBuffer From(int64_t row_idx) const { return {row(row_idx), stride_bytes}; }
  float* floats(int64_t row_idx) const { return reinterpret_cast<float*>(row(row_idx)); }
};

struct Activations {
  RowBuffer hidden;             // (tokens, hidden) float: the residual stream
  RowBuffer normed;             // (tokens, hidden) activations
  RowBuffer normed_float;       // (tokens, hidden) float, for the router
  RowBuffer expert_in;          // (slots, hidden) activations; a slot is one token of one expert
  RowBuffer qkv;                // (tokens, what a layer projects at once) float
  RowBuffer queries;            // (tokens, num_heads, padded head_dim) float or bf16
  RowBuffer attention_wide;     // (tokens, output_dim) float or bf16
  RowBuffer attention_out;      // (tokens, output_dim) activations
  RowBuffer router_logits;      // (tokens, num_experts + 1) float
  RowBuffer intermediate_wide;  // (slots, intermediate) float or bf16
  RowBuffer intermediate;       // (slots, intermediate) activations
  RowBuffer slot_out;           // (slots, hidden) float
  RowBuffer partial_out;        // (tokens, hidden) float: attention's output of some heads
  RowBuffer shared_out;         // (tokens, hidden) float
  RowBuffer wanted;             // (kHeadRows, hidden) activations
  RowBuffer logits;             // (kHeadRows, vocab) float
  RowBuffer attention_scratch;  // (threads, AttentionScratchBytes)
  RowBuffer gemm_scratch;       // (threads, kGemmScratchBytes)
  RowBuffer span_partials;      // floats of attention spans computed apart (attention_layer.cc)

  // Of latent attention (latent_attention.h).
  RowBuffer query_latent;      // (tokens, query_rank) activations
  RowBuffer wide_queries;      // (tokens, query_dim) float, of queries with a latent
  RowBuffer head_in;           // (num_heads * kAbsorbedRows, nope_dim or kv_rank) activations
  RowBuffer head_out;          // (num_heads * kAbsorbedRows, kv_rank or padded value_dim) float
  RowBuffer absorbed_queries;  // (kAbsorbedRows, num_heads, padded key_dim) float or bf16
  RowBuffer cached_keys;       // (kExpandedRows, key_dim) float
  RowBuffer cached_latents;    // (kExpandedRows, kv_rank) activations
  RowBuffer expanded_keys;     // (kExpandedRows, heads at once * padded nope_dim) float
  RowBuffer expanded_values;   // (kExpandedRows, heads at once * padded value_dim) float
  RowBuffer expanded_blocks;   // (heads at once * blocks of a context, bytes of a block)

  // For what travels between ranks (exchange_memory.h).
  std::span<std::byte> exchange;

  // Rows of absorbed queries, and cached positions that are expanded, at a time.
  static constexpr int kAbsorbedRows = 64;
  static constexpr int kExpandedRows = 512;
  // Heads whose keys and values are expanded at a time, so that they stay within some memory.
  static int ExpandedHeads(const model::AttentionSpec& attention, kernels::KvFormat compute,
                           int context);
  // Of one head; rows of expanded_blocks are that long or longer.
  static int64_t ExpandedBlockBytes(const model::AttentionSpec& attention,
                                    kernels::KvFormat compute);

  // Logits are computed for so many rows at a time.
  static constexpr int kHeadRows = 128;
  // Rows of attention whose spans may wait in span_partials.
  static constexpr int kSpanPartials = 8192;

  kernels::ActivationFormat format = kernels::ActivationFormat::kBf16;
  // Of what is made piece by piece and becomes activations as a whole row: `format`, but float for
  // int8, whose scale depends on the whole row. Then the `wide` buffers are memory of their own.
  kernels::ActivationFormat wide_format = kernels::ActivationFormat::kBf16;

  struct Shape {
    int max_step_tokens = 0;  // of this rank's sequences
    // Rows that the experts of this rank may get in a step, its own included.
    int max_expert_rows = 0;
    int context = 0;  // of the longest sequence, in tokens
    int num_threads = 1;
    int expert_shares = 1;       // that the experts are divided into
    bool is_partial = false;     // attention's heads are divided among ranks
    int64_t exchange_bytes = 0;  // of `exchange`
  };
  // From one row to the next one.
  static int64_t RowStride(kernels::ActivationFormat format, int width);
  static uint64_t SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                            const Shape& shape);
  static Result<Activations> Create(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                    const Shape& shape);

  int num_slots = 0;  // of expert_in and slot_out

  hardware::HugeBuffer memory;
};

}  // namespace convene::runtime
