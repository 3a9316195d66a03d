// A lane of a device that computes: operators are enqueued on it and run in that order; events say
// when. What an operator reads and writes is a frame's memory, the KV cache and the weights, which
// it leases; of the frame itself it is told which rows there are and where they belong, as it is
// when the operator is enqueued.
//
// What is computed is fetched explicitly, and whatever the host is to see (FetchX, rows that were
// packed to travel) is there once an event recorded behind the operator is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "device/expert_rows.h"
#include "device/layer.h"
#include "device/step_shape.h"
#include "device/step_statistics.h"
#include "device/wire_rows.h"
#include "kernels/kernel_set.h"
#include "model/model_spec.h"
#include "strategy/role.h"

namespace convene::device {

class FrameMemory;
struct Frame;

// A place on a stream; it may be recorded again and again.
class Event {
 public:
  virtual ~Event() = default;
  // Whether all is done that was enqueued before it was last recorded; true where it never was. Any
  // thread may ask, and wait.
  virtual bool IsDone() const = 0;
  virtual void Wait() const = 0;
};

struct StreamOptions {
  kernels::ActivationFormat activations = kernels::ActivationFormat::kBf16;
  WireRows wire = {};
  strategy::Roles roles = {};
  int rank = 0;
  // The model as all ranks together have it, where the weights are a share of it.
  const model::ModelSpec& whole_spec;
  StepShape shape = {};
  // As TransformerOptions (runtime/transformer_options.h):
  int dense_from_rows = 0;
  int comm_budget = 0;
};

// A row of which logits are wanted: own, or as another rank has sent it.
struct HeadRow {
  const FrameMemory* memory = nullptr;
  int row = 0;
  const std::byte* received = nullptr;  // null: own row `row` of `memory`
};

// Rows of a frame that travel between a device and the host beside it, where the host has the
// middle part of attention.
enum class AttentionRows {
  kQkv,       // queries, keys and values, as BeginAttention left them
  kAttended,  // what AttendSequences made of them, before the output's product
};

// (rows, stride) float32 in host memory.
struct FetchedRows {
  float* data = nullptr;
  int64_t stride = 0;
  float* row(int64_t row_idx) const { return data + row_idx * stride; }
};

struct FetchedLogits {
  // (rows, vocab); of a rank with a part of the head its tokens' alone, in front, and there is room
  // for the others'.
  FetchedRows rows;
  // Not null: the rows stayed on the device, where largest[i] was found to be the token of row i's
  // largest logit, the lowest one of equals; less than 0: some of its logits are NaN or infinite.
  const int32_t* largest = nullptr;
};

// Operators with a status fail where a lease does, before they have changed anything that would be
// done twice. All work on the frame's own rows (Frame::own), attention on all rows, unless it says
// otherwise.
class Stream {
 public:
  // Of so many rows at most logits are computed at once.
  static constexpr int kHeadRows = strategy::kHeadRows;

  virtual ~Stream() = default;

  virtual void Record(Event& event) = 0;
  // Products that are enqueued from here on leave StreamOptions::comm_budget threads alone while
  // `exchanging` says so.
  virtual void WatchExchanges(std::function<bool()> exchanging) = 0;
  // What went wrong on the device since the stream was made: an operator without a status, or one
  // that had been enqueued well.
  virtual Status status() const = 0;
  // What its operators did since the host last set it to nothing.
  virtual StepStatistics& statistics() = 0;

  // Before the operators of a frame's next micro-batch: its rows are known.
  virtual void Begin(Frame& frame) = 0;
  virtual Status Embed(bool encoder, Frame& frame) = 0;
  // The residual stream's norm before attention (`cross`: before that to the encoder's output).
  virtual void Normalize(const Layer& layer, bool cross, Frame& frame) = 0;
  // That before a dense block that is divided among ranks; Dense does it itself of a whole one.
  virtual void NormalizeDense(const Layer& layer, Frame& frame) = 0;
  // The norm at the end of a stack.
  virtual void NormalizeFinal(bool encoder, Frame& frame) = 0;
  // Moves the own rows whose logits are wanted to their places among the wanted ones: the frame has
  // been divided anew (Frame::DivideWanted).
  virtual void KeepWanted(Frame& frame) = 0;
  // Queries, keys and values where the rest of attention waits for kNormSums, and the own part of
  // those sums.
  virtual Status Project(const Layer& layer, Frame& frame) = 0;
  // What is left of attention (schedule/schedule.h), to its output's product: added to the residual
  // stream, or packed as partial sums where the heads are divided. `only_wanted`: from the scores
  // on for the wanted rows alone, and of attention to itself these are then in front, as after
  // KeepWanted.
  struct AttentionTask {
    bool cross = false;
    bool only_wanted = false;
  };
  virtual Status Attend(const Layer& layer, const AttentionTask& task, Frame& frame) = 0;
  // The same in three parts, where one rank has all heads and the layer no latents: projections of
  // all rows, with nothing else on the stream until AttendSequences is done with all sequences of
  // the frame, in their order; keys and values of these to the cache, and their scores and values;
  // the output's product, of all rows or of the wanted ones.
  virtual Status BeginAttention(const Layer& layer, Frame& frame) = 0;
  struct SequenceRange {
    int begin = 0;
    int end = 0;
  };
  virtual Status AttendSequences(const Layer& layer, SequenceRange sequences, bool only_wanted,
                                 Frame& frame) = 0;
  virtual Status EndAttention(const Layer& layer, bool only_wanted, Frame& frame) = 0;
  // Between two streams of the same model and formats, with a frame each for the same sequences:
  // all rows of the frame to memory of this stream's device, one behind the other, and from there
  // to where the next part of attention expects them. (rows, AttentionRowBytes) each.
  virtual int64_t AttentionRowBytes(AttentionRows kind, const Layer& layer) const = 0;
  virtual void PackAttention(AttentionRows kind, const Layer& layer, const Frame& frame,
                             std::byte* to) = 0;
  virtual void UnpackAttention(AttentionRows kind, const Layer& layer, const std::byte* from,
                               Frame& frame) = 0;
  // The sum of all parts of a block to the residual stream.
  virtual void AddPartials(Frame& frame) = 0;
  // Keys and values of an encoder's states, for a layer of the decoder.
  virtual Status StoreCross(const Layer& layer, Frame& frame) = 0;

  // Added to the residual stream; of a part of it, as StreamOptions::roles say, all rows that the
  // ranks of a group have, packed as partial sums.
  virtual Status Dense(const Layer& layer, Frame& frame) = 0;
  // Chooses experts; FetchRouting brings them to Frame::experts and Frame::expert_weights.
  virtual Status Route(const Layer& layer, Frame& frame) = 0;
  virtual void FetchRouting(Frame& frame) = 0;
  // Whether RouteHere can be used: as Route, but the choice stays on the device, where Experts and
  // Finish of the layer find it. Of one rank with all experts, whose host need not see it.
  virtual bool KeepsRouting() const = 0;
  virtual Status RouteHere(const Layer& layer, Frame& frame) = 0;
  // What the router of `next`, a later layer, would choose from the residual stream as it is, into
  // Frame::predicted by the next FetchRouting. Before the Route of the layer in work.
  virtual Status Predict(const Layer& next, Frame& frame) = 0;
  // The rows that go to other ranks' experts (ExpertRows::outgoing).
  virtual void PackDispatch(Frame& frame) = 0;
  virtual Status Shared(const Layer& layer, Frame& frame) = 0;
  // The slots that were selected last (ExpertRows::selected).
  virtual Status Experts(const Layer& layer, Frame& frame) = 0;
  // Packs these sums.
  virtual void Reduce(std::span<const ExpertRows::Returning> sums, Frame& frame) = 0;
  // Adds what all experts gave to the residual stream.
  virtual void Finish(const Layer& layer, Frame& frame) = 0;

  // Logits of at most kHeadRows rows; those that were fetched are valid until the next call.
  // `largest_suffices`: SequenceStep's, of all of these rows.
  virtual Status Head(std::span<const HeadRow> rows, bool largest_suffices) = 0;
  virtual FetchedLogits FetchLogits() = 0;
  // Whether the residual stream's own rows are finite.
  virtual bool FetchAllFinite(const Frame& frame) = 0;
};

}  // namespace convene::device
