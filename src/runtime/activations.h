// The buffers of a forward pass, sized once for the largest step. Rows of activations are laid out
// as kernels/activation_row.h says.
#pragma once

#include <cstddef>
#include <cstdint>
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
  float* floats(int64_t row_idx) const { return reinterpret_cast<float*>(row(row_idx)); }
};

struct Activations {
  RowBuffer hidden;             // (tokens, hidden) float: the residual stream
  RowBuffer normed;             // (tokens, hidden) activations
  RowBuffer normed_float;       // (tokens, hidden) float, for the router
  RowBuffer expert_in;          // (slots, hidden) activations; a slot is one token of one expert
  RowBuffer qkv;                // (tokens, query_dim + 2 kv_dim) float
  RowBuffer queries;            // (tokens, num_heads, padded head_dim) float or bf16
  RowBuffer attention_wide;     // (tokens, query_dim) float or bf16
  RowBuffer attention_out;      // (tokens, query_dim) activations
  RowBuffer router_logits;      // (tokens, num_experts + 1) float
  RowBuffer intermediate_wide;  // (slots, intermediate) float or bf16
  RowBuffer intermediate;       // (slots, intermediate) activations
  RowBuffer slot_out;           // (slots, hidden) float
  RowBuffer shared_out;         // (tokens, hidden) float
  RowBuffer logits;             // (kHeadRows, vocab) float
  RowBuffer attention_scratch;  // (threads, AttentionScratchBytes)
  RowBuffer gemm_scratch;       // (threads, kGemmScratchBytes)
  RowBuffer span_partials;      // floats of attention spans computed apart (attention_layer.cc)

  // Logits are computed for so many rows at a time.
  static constexpr int kHeadRows = 128;
  // Rows of attention whose spans may wait in span_partials.
  static constexpr int kSpanPartials = 8192;

  kernels::ActivationFormat format = kernels::ActivationFormat::kBf16;
  // Of what is made piece by piece and becomes activations as a whole row: `format`, but float for
  // int8, whose scale depends on the whole row. Then the `wide` buffers are memory of their own.
  kernels::ActivationFormat wide_format = kernels::ActivationFormat::kBf16;

  static uint64_t SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                            int max_step_tokens, int num_threads);
  static Result<Activations> Create(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                    int max_step_tokens, int num_threads);

  hardware::HugeBuffer memory;
};

}  // namespace convene::runtime
