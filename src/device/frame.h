// All that one micro-batch owns while it goes through the layers: its rows and where they belong,
// routing, what it exchanges with other ranks, and, known to the device alone, its activations. As
// many frames as a step has micro-batches; what works on them (stream.h) keeps nothing of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/group.h"
#include "device/device.h"
#include "device/exchange_memory.h"
#include "device/expert_rows.h"
#include "device/layer.h"
#include "device/row_buffers.h"
#include "device/step_rows.h"

namespace convene::device {

struct Frame {
  // What all frames of a rank have in common.
  struct Options {
    strategy::AttentionRole attention = {};  // of a rank without: any
    ExpertRows::Options expert_rows = {};
    RowBuffers::Options row_buffers = {};
  };
  // What FrameShape::exchange_bytes must be.
  static int64_t ExchangeBytes(const Options& options);

  // `group` may be null where there is one rank; `spec` outlives the frame.
  Frame(const model::ModelSpec& spec, const Options& options,
        std::unique_ptr<FrameMemory> memory_in, comm::Group* group);
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // Starts the next micro-batch: `sequences` are this rank's part of it (none, where it has no
  // attention).
  void Begin(std::vector<SequenceStep> sequences);

  // The rows whose residual stream this rank has: one part of the rows of its group's sequences.
  OwnRows own() const { return owners[part]; }
  // Of all of its group's ranks.
  int num_rows() const {
    return has_only_wanted ? static_cast<int>(rows.wanted().size()) : rows.num_rows();
  }
  // From here on the frame has only the wanted rows; each rank owns those that it owned before.
  void DivideWanted();
  // Which of `rows` an own row is.
  int row_of(int own_row) const {
    const int row = own().first + own_row;
    return has_only_wanted ? rows.wanted()[static_cast<size_t>(row)] : row;
  }

  int part = 0;  // of the heads, which this rank has
  std::vector<SequenceStep> step;
  StepRows rows;  // of `step`
  std::unique_ptr<FrameMemory> memory;
  std::vector<OwnRows> owners;   // the rows of each rank that has a part of the heads
  bool has_only_wanted = false;  // since DivideWanted
  // Whether the host sees nothing of the step before its logits: a device may then run it as one.
  bool is_seen_at_end_alone = false;

  // Of the layer in work, once they were fetched.
  std::vector<int32_t> experts;       // (own rows, top_k)
  std::vector<float> expert_weights;  // (own rows, top_k)
  // (own rows), where shared experts are divided: what the output of theirs counts.
  std::vector<float> shared_weights;
  // Whether the rows visit one expert more, the shared one, in expert_rows.
  bool visits_shared = false;
  std::vector<int32_t> predicted;  // (own rows, top_k of that layer); none: nothing was

  ExchangeMemory exchange_memory;
  ExpertRows expert_rows;
  RowBuffers row_buffers;
  std::vector<int> wanted_counts;  // on ranks with the head: by rank, rows whose output is wanted
};

}  // namespace convene::device
