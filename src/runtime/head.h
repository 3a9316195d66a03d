// The end of a step: rows whose output is wanted, from all ranks and micro-batches on rank 0, in
// the order of the step's sequences. Of a decoder their logits, of an encoder the states
// themselves.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/frame.h"
#include "runtime/row_exchange.h"
#include "runtime/step_outputs.h"

namespace convene::runtime {

using Frames = std::span<const std::unique_ptr<device::Frame>>;

class Head {
 public:
  Head(const RowExchange& row_exchange, const strategy::Roles& roles)
      : row_exchange_(row_exchange), roles_(roles) {}

  // On rank 0: which rank and frame has each wanted row, of a step of all groups' sequences, cut as
  // cut_step.h has it into `frames`, whose wanted_counts are set.
  void Begin(std::span<const device::SequenceStep> step, Frames frames);

  // Logits of the wanted rows, (vocab) each. `fetched` is recorded on the stream before they are
  // fetched.
  Status Run(Frames frames, int vocab_size, device::Stream& stream, device::Event& fetched,
             const LogitsSink& sink);
  // Their states, (hidden) each, once all that made them is done.
  void PassStates(Frames frames, int hidden_size, const StatesSink& sink);

 private:
  struct Row {
    int sequence_idx = 0;
    int token_idx = 0;
    int frame_idx = 0;
    int rank = 0;
    int row_idx = 0;  // among that rank's wanted rows in the frame
    bool largest_suffices = false;
  };

  const RowExchange& row_exchange_;
  strategy::Roles roles_;
  std::vector<Row> rows_;
  std::vector<device::HeadRow> head_rows_;  // that are in work
};

}  // namespace convene::runtime
