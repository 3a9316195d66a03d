// The end of a step: rows whose output is wanted, from all ranks and micro-batches on rank 0, in
// the order of the step's sequences. Of a decoder their logits, of an encoder the states
// themselves. Where ranks divide the head each has all those rows, and makes the logits of its
// tokens of the vocabulary, which rank 0 puts together.
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
  Head(const RowExchange& row_exchange, const strategy::Roles& roles, int rank)
      : row_exchange_(row_exchange), roles_(roles), rank_(rank) {}

  // On ranks with the head: which rank and frame has each wanted row, of a step of all groups'
  // sequences, cut as cut_step.h has it into `frames`, whose wanted_counts are set.
  void Begin(std::span<const device::SequenceStep> step, Frames frames);

  // Logits of the wanted rows, (vocab) each. `fetched` is recorded on the stream before they are
  // fetched.
  Status Run(Frames frames, int vocab_size, device::Stream& stream, device::Event& fetched,
             const LogitsSink& sink);
  // The same where the head is divided, of the wanted rows of a chunk (strategy::StepOptions), in
  // three parts: the logits of the rank's own tokens; those of the others to rank 0, of each row
  // the largest alone where `largest_suffices` says that nobody looks at more; and there, together.
  Status RunPart(int chunk, Frames frames, int vocab_size, bool largest_suffices,
                 device::Stream& stream, device::Event& fetched);
  std::unique_ptr<comm::Exchange> StartGather(int chunk, const device::Frame& frame, int vocab_size,
                                              bool largest_suffices,
                                              std::span<uint32_t> statuses) const;
  void Join(int chunk, const device::Frame& frame, int vocab_size, bool largest_suffices,
            device::Stream& stream, const LogitsSink& sink) const;
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

  std::span<const Row> RowsOf(int chunk) const;
  // To head_rows_: where the device finds them.
  void CollectRows(std::span<const Row> rows, Frames frames);
  strategy::Part TokensOf(int rank, int vocab_size) const {
    return roles_.of(rank).head->TokensOf(vocab_size);
  }

  const RowExchange& row_exchange_;
  strategy::Roles roles_;
  int rank_;
  std::vector<Row> rows_;
  std::vector<device::HeadRow> head_rows_;  // that are in work
};

}  // namespace convene::runtime
