// What one micro-batch has in memory while it goes through the layers: a frame's rows
// (cpu_frame.h), sized once for the largest. Rows of activations are laid out as
// kernels/activation_row.h says. What a task needs for itself alone is workspace.h.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/cpu/row_buffer.h"
#include "device/step_shape.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::device {

struct Activations {
  RowBuffer hidden;          // (tokens, hidden) float: the residual stream
  RowBuffer normed;          // (tokens, hidden) activations
  RowBuffer normed_float;    // (tokens, hidden) float, for the router
  RowBuffer qkv;             // (tokens, what a layer projects at once) float
  RowBuffer attention_wide;  // (tokens, output_dim) float or bf16
  RowBuffer attention_out;   // (tokens, output_dim) activations
  RowBuffer partial_out;     // (tokens, hidden) float: attention's output of some heads
  RowBuffer router_logits;   // (tokens, num_experts + 1) float
  RowBuffer shared_out;      // (tokens, hidden) float
  RowBuffer slot_out;        // (slots, hidden) float; a slot is one token of one expert

  kernels::ActivationFormat format = kernels::ActivationFormat::kBf16;
  int num_slots = 0;  // of slot_out

  // Without what travels between ranks.
  static uint64_t SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                            const FrameShape& shape);
  static Result<Activations> Create(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                    const FrameShape& shape, memory::Ledger& ledger);

  memory::Reservation memory;
  memory::Reservation exchange;  // for what travels between ranks (device/exchange_memory.h)
};

}  // namespace convene::device
