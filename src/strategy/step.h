// The schedule of one step: what every strategy shares (embedding, attention, head), with the
// experts as the chosen one has them. It decides nothing: the parameters come from a plan.
#pragma once

#include <optional>
#include <vector>

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/expert_loads.h"
#include "strategy/role.h"

namespace convene::strategy {

// What a chunk of an expert stage is.
enum class ChunkCut {
  kTokens,   // a part of the tokens that come from other ranks: weights are read for each chunk
  kExperts,  // a part of a rank's experts: a token comes with the first chunk that needs it
};

// Where attention and experts are on different ranks: the order of attention (A) and shared experts
// (S) of a layer's micro-batches (Pan et al., "FinDEP", section 3).
enum class AttentionOrder {
  kAsas,  // A0 S0 A1 S1 ...
  kAass,  // all A, then all S
};

// How a step is divided in time: its rows into micro-batches, one of which computes while another
// one exchanges, and within each the experts of a layer into chunks (EPS-MoE, section 3; systems:
// expert pipeline).
struct Pipeline {
  int chunks = 1;  // 1: everything is dispatched, then computed, then combined
  ChunkCut cut = ChunkCut::kTokens;
  // False: nothing runs beside an exchange, as a baseline.
  bool overlap = true;
  int micro_batches = 1;  // 1: all rows go through the layers together
  // Where chunks of experts end, all but the last, as parts of a rank's experts: chunks - 1 numbers
  // between 0 and 1 that increase (expert_cuts.h). Empty: as many experts in each.
  std::vector<double> cuts = {};
  // Of layouts that disaggregate alone (disaggregated_experts.h), whose chunks are of tokens:
  AttentionOrder order = AttentionOrder::kAsas;
  // As in PPPipe: the shared expert counts as part of attention, so dispatch waits for it too.
  bool dispatch_after_shared = false;

  bool operator==(const Pipeline&) const = default;
};

// Where the routed experts of ranks are read from a disk while the step runs (paged_experts.h).
struct Paging {
  // A layer's experts of a rank are read, and computed, in so many parts (expert_cuts.h), the same
  // number on all ranks.
  int chunks = 1;
  // So many parts are in memory at the same time, or on their way there.
  int depth = 2;
  // Whether those that tokens chose are read, once that is known; otherwise all are, ahead of it.
  bool after_routing = false;
  // With after_routing: of the next layer those are read ahead that its router would choose from
  // what this layer's router saw.
  bool predicts = false;
  // Of the experts that a step wants the share that it does not find in memory, on even routing.
  double missing = 1;

  bool operator==(const Paging&) const = default;
};

// Where keys and values of a rank lie on a disk but for a part of them (spilled_kv.h).
struct SpilledKv {
  // The sequences of a step go through a layer's attention in so many parts, one behind the other.
  int parts = 1;
  // So many parts have their keys and values in memory at the same time, or on their way there.
  int depth = 2;
  double missing = 1;  // the share of all blocks that memory has no room for

  bool operator==(const SpilledKv&) const = default;
};

// Most that a pipeline may have: buffers are sized before it is chosen.
inline constexpr int kMostChunks = 256;
inline constexpr int kMostMicroBatches = 64;

// What a rank tells another one before each chunk: three numbers of 32 bits.
inline constexpr int kCountsBytes = 12;

// What a rank tells each other one at the end of a step: whether a task of it has failed.
inline constexpr int kStatusBytes = 4;

struct ElementBytes {
  double weights = 2;
  double activations = 2;
  double kv = 2;
  double dispatched = 2;
  double returned = 2;  // sums of experts
  double sums = 2;      // partial sums of attention
};

struct StepOptions {
  Roles roles = {};
  Pipeline pipeline = {};
  ElementBytes bytes = {};
  // Whether the decoder's last layer goes on, after its keys and values, with the rows whose logits
  // are wanted alone.
  bool prunes_last_layer = true;
  std::optional<Paging> paging = {};  // unset: all weights are in memory
  // Of a step of the decoder behind which the experts are divided otherwise: each rank loads those
  // it will have, layer by layer, while the step goes on (transition.h). Unset: they stay.
  std::optional<ExpertLoads> loads = {};
  // Unset: all keys and values are in memory. Of one rank, without an encoder or latents.
  std::optional<SpilledKv> spilled_kv = {};
  // Where the head is divided: the wanted rows go through it in so many chunks (HeadChunksOf,
  // role.h), and of each nothing but the largest logit is looked at
  // (device::SequenceStep::largest_suffices).
  int head_chunks = 1;
  bool largest_suffices = true;
  // Tasks of this rank alone: what it executes. -1: of all ranks, as the simulator wants them.
  int only_rank = -1;
};

// What a rank tells of a row of which only the largest logit is wanted: that, and its token.
inline constexpr int kLargestBytes = 8;

// As the options say, or of several ranks whose experts are read from a disk: its chunks are what
// is read, and the whole step goes through a layer at once, so that each expert is read once.
Pipeline PipelineOf(const StepOptions& options);

// Both are checked: what touches the same thing is in order (schedule/hazards.h; CHECK).
// Precondition: the options' pipeline is PipelineOf them.
schedule::Schedule BuildStep(const model::ModelSpec& spec, const StepOptions& options);

// Of an encoder: its layers, then the keys and values that the decoder attends to.
schedule::Schedule BuildEncoderStep(const model::ModelSpec& spec, const StepOptions& options);

}  // namespace convene::strategy
