// Memory of the task in work: nothing in it outlives a task, so that all micro-batches share it.
// One per lane that computes. What stays from task to task is activations.h.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/cpu/row_buffer.h"
#include "device/step_shape.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::device {

struct Workspace {
  RowBuffer expert_in;          // (slots, hidden) activations
  RowBuffer intermediate_wide;  // (slots, intermediate) float or bf16
  RowBuffer intermediate;       // (slots, intermediate) activations
  RowBuffer queries;            // (tokens, num_heads, padded head_dim) float or bf16
  RowBuffer wanted;             // (Stream::kHeadRows, hidden) activations
  RowBuffer logits;             // (Stream::kHeadRows, vocab) float
  RowBuffer attention_scratch;  // (threads, AttentionScratchBytes)
  RowBuffer gemm_scratch;       // (threads, kGemmScratchBytes)
  RowBuffer span_partials;      // floats of attention spans computed apart (attend.h)
  RowBuffer unpacked;           // (threads, ranks * hidden) float: rows that others have sent

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

  // Rows of absorbed queries, and cached positions that are expanded, at a time.
  static constexpr int kAbsorbedRows = 64;
  static constexpr int kExpandedRows = 512;
  // Heads whose keys and values are expanded at a time, so that they stay within some memory.
  static int ExpandedHeads(const model::AttentionSpec& attention, kernels::KvFormat compute,
                           int context);
  // Of one head; rows of expanded_blocks are that long or longer.
  static int64_t ExpandedBlockBytes(const model::AttentionSpec& attention,
                                    kernels::KvFormat compute);

  // Rows of attention whose spans may wait in span_partials.
  static constexpr int kSpanPartials = 8192;

  kernels::ActivationFormat format = kernels::ActivationFormat::kBf16;
  // Of intermediate_wide and Activations::attention_wide.
  kernels::ActivationFormat wide_format = kernels::ActivationFormat::kBf16;

  static uint64_t SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                            const StepShape& shape, int num_threads);
  static Result<Workspace> Create(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                  const StepShape& shape, int num_threads, memory::Ledger& ledger);

  memory::Reservation memory;
};

}  // namespace convene::device
