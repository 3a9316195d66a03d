// All that one micro-batch owns while it goes through the layers: its rows and where they belong,
// activations, routing, and what it exchanges with other ranks. As many frames as a step has
// micro-batches; what works on them (attention_layer.h, feed_forward.h, row_exchange.h, head.h)
// keeps nothing of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "hardware/thread_pool.h"
#include "runtime/activations.h"
#include "runtime/exchange_memory.h"
#include "runtime/expert_capacity.h"
#include "runtime/expert_rows.h"
#include "runtime/layer.h"
#include "runtime/row_exchange.h"
#include "runtime/step_rows.h"

namespace convene::runtime {

struct Frame {
  // What all frames of a rank have in common.
  struct Options {
    strategy::AttentionRole attention = {};
    ExpertRows::Options expert_rows = {};
    RowExchange::Options row_exchange = {};
  };
  // How many bytes `exchange` needs in the activations.
  static int64_t ExchangeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                               const Options& options);

  // `group` may be null where there is one rank; `spec` outlives the frame.
  Frame(const model::ModelSpec& spec, const Options& options, Activations memory,
        comm::Group* group);
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // Starts the next micro-batch: `sequences` are this rank's part of it, and `rows_before` says how
  // many own rows the step's earlier micro-batches have.
  void Begin(std::vector<SequenceStep> sequences, int rows_before, hardware::ThreadPool& pool);

  // The rows whose residual stream this rank has: one part of the rows of its group's sequences.
  OwnRows own() const { return owners[part]; }
  // From here on the frame has only the wanted rows; each rank owns those that it owned before.
  void DivideWanted();
  // Moves the own rows whose logits are wanted to their places among the wanted ones.
  void KeepWanted();

  int part = 0;  // of the heads, which this rank has
  std::vector<SequenceStep> step;
  StepRows rows;  // of `step`
  Activations activations;
  std::vector<OwnRows> owners;             // the rows of each rank that has a part of the heads
  int first_own_row = 0;                   // among this rank's rows of the whole step
  int num_out = 0;                         // rows that the attention in work goes on with
  std::vector<CapacityRow> capacity_rows;  // where experts have a capacity

  // Of the layer in work.
  std::vector<int32_t> experts;       // (own rows, top_k)
  std::vector<float> expert_weights;  // (own rows, top_k)

  ExchangeMemory exchange_memory;
  ExpertRows expert_rows;
  RowBuffers row_buffers;
  std::vector<int> wanted_counts;  // rank 0: by rank, rows whose output is wanted
};

}  // namespace convene::runtime
