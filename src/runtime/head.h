// The end of a step: rows whose output is wanted, from all ranks and micro-batches on rank 0, in
// the order of the step's sequences. Of a decoder their logits, of an encoder the states
// themselves.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/forward_context.h"
#include "runtime/frame.h"
#include "runtime/row_exchange.h"

namespace convene::runtime {

using Frames = std::span<const std::unique_ptr<Frame>>;

class Head {
 public:
  Head(ForwardContext& context, const RowExchange& row_exchange, const strategy::Roles& roles)
      : context_(context), row_exchange_(row_exchange), roles_(roles) {}

  // On rank 0: which rank and frame has each wanted row, of a step of all groups' sequences, cut as
  // cut_step.h has it into `frames`, whose wanted_counts are set.
  void Begin(std::span<const SequenceStep> step, Frames frames);

  // Logits of the wanted rows.
  Status Run(Frames frames, const LogitsSink& sink);
  // The wanted rows of normed_float.
  void PassStates(Frames frames, const StatesSink& sink);

 private:
  struct Row {
    int sequence_idx = 0;
    int token_idx = 0;
    int frame_idx = 0;
    int rank = 0;
    int row_idx = 0;  // among that rank's wanted rows in the frame
  };
  const std::byte* Gathered(Frames frames, const Row& row, RowBuffer Activations::*buffer) const;

  ForwardContext& context_;
  const RowExchange& row_exchange_;
  strategy::Roles roles_;
  std::vector<Row> rows_;
};

}  // namespace convene::runtime
