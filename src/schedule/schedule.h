// A step expanded to tasks: what is done on which lane of which rank, after what, and how much work
// it is. It knows no clock, no machine and no kernel: the runtime executes it, the simulator prices
// it. How tasks are chosen is strategy/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::schedule {

// A lane runs its tasks one after the other, in the order of the schedule. That is all it fixes:
// how fast a task runs depends on what it shares (simulate/).
enum class LaneKind {
  kCompute,
  kHost,  // the CPU beside a device, or a share of the cores
  // Collectives alone. kReceive has what returns (combine) and, where ranks have some of the layers
  // each, every other passing of rows; kSend has all others.
  kSend,
  kReceive,
  kLoad,   // pinned memory (or disk) to the device, and back where keys and values are spilled
  kStore,  // device to pinned memory (or disk)
  kStage,  // pageable to pinned memory
};
inline constexpr int kNumLaneKinds = 7;

struct Lane {
  int rank = 0;
  LaneKind kind = LaneKind::kCompute;

  bool operator==(const Lane&) const = default;
};

enum class TaskKind {
  // Of a step.
  kEmbed,
  kPassRows,    // collective: all rows from a rank with some layers to the one with the next ones
  kGatherRows,  // collective: the rows whose logits are wanted, to the ranks that have the head
  kHead,
  // Where the head is divided among ranks; of a chunk of the wanted rows.
  kGatherLogits,  // collective: each rank's logits to rank 0
  kJoinLogits,
  // Of a layer: attention.
  kNormalize,     // of a rank's own rows, where the block is divided among ranks
  kGatherNormed,  // collective: own rows to all who have a part of the block
  kProject,       // queries, keys and values, where the rest must wait for kNormSums
  kNormSums,      // collective: sums of squares of projections that are normalised as a whole
  kAttention,    // whatever of norm, projections, cache, scores and output is not a task of its own
  kScatterSums,  // collective: partial outputs to the rows' owners
  kAddPartials,  // sums them, in the order of ranks, and adds them to the residual stream
  // In three parts, where the host has the middle one (offload pipeline), or where the cache is
  // brought from a disk for some sequences after the other (spilled KV):
  kPreAttention,   // norm, queries, keys and values
  kAttend,         // scores and values alone; spilled KV: of a chunk, which is of sequences
  kPostAttention,  // output projection, and experts where they are not tasks of their own
  kCrossStore,     // keys and values that the decoder's layers attend to
  // Of a layer: feed-forward.
  kDense,
  kRoute,
  kCounts,    // collective: how much everybody will send to everybody
  kDispatch,  // collective: rows to the ranks of their experts
  kShared,    // the shared expert
  kExperts,
  kReduce,   // sums of a row's experts on this rank
  kCombine,  // collective: those sums back to the rows' owners
  kFinish,   // the sum over ranks, added to the residual stream
  // Between two phases.
  kMoveExperts,  // collective: weights of experts to the ranks that have them from here on
  // The rank's experts from here on, from what it has of them and a copy in its host's memory.
  kLoadExperts,
  // Copies between tiers.
  kSendHidden,     // to the device
  kSendQkv,        // from the device
  kLoadPage,       // a page of weights to the device
  kStagePage,      // a page of weights to pinned memory
  kReadPages,      // the experts of a chunk from a disk to memory, as far as they are not there
  kReadChosen,     // of a chunk those that tokens chose
  kReadPredicted,  // of the next layer with experts those that they will probably choose
  kReadNext,       // of the next step's first layers, until the logits of this one are sampled
  kReadKv,         // keys and values of a chunk's sequences, from a disk to memory
  kWriteKv,        // those of them that are new, back to the disk
};
inline constexpr int kNumTaskKinds = static_cast<int>(TaskKind::kWriteKv) + 1;

// A size that is not known when a schedule is made.
enum class SizeKind {
  kOne,     // 1
  kRows,    // of rank `from`: tokens of its own in this step
  kTokens,  // of rank `from`: tokens whose attention it computes (a part of)
  // Of rank `from`, over its tokens; `layer` is set where a window limits what they see.
  kKeys,            // the keys that each sees, summed up
  kCached,          // those that their sequences have in the cache, each once
  kExpandedTokens,  // with latent attention: tokens for which keys and values are expanded,
  kExpandedKeys,    // the keys that these see,
  kExpandedCached,  // and those that are expanded, for each sequence once
  kInputKeys,       // of an encoder's output, as kKeys
  kInputCached,     // and as kCached
  kWanted,          // of rank `from`: own tokens whose logits are wanted
  kSent,            // tokens that rank `from` sends to rank `to` in dispatch `chunk` of `layer`
  kReturned,        // sums that rank `from` returns to rank `to` in combine `chunk` of `layer`
  kSlots,           // (token, expert) pairs that rank `from` computes in experts `chunk` of `layer`
  kExperts,         // distinct experts among them
};
inline constexpr int kNumSizeKinds = static_cast<int>(SizeKind::kExperts) + 1;

struct Size {
  SizeKind kind = SizeKind::kOne;
  int layer = -1;
  int chunk = -1;
  int from = -1;
  int to = -1;
  int micro_batch = -1;  // as Task's
  // Of kTokens and those after it: only of tokens whose logits are wanted, on any rank.
  bool wanted = false;

  bool operator==(const Size&) const = default;
};

// A sum of factors times sizes. Bytes whose size names a receiver go there, of kOne, too.
struct Term {
  double factor = 0;
  Size size = {};
};
using Amount = std::vector<Term>;

inline Amount Constant(double value) { return {{.factor = value}}; }

// What a task takes of the resources that tasks share.
struct Work {
  Amount flops = {};         // on the lane's cores (kHost: the host's)
  Amount memory_bytes = {};  // read and written, of the lane's memory
  Amount link_bytes = {};    // sent to other ranks; lanes that copy between tiers: over their link
  Amount disk_bytes = {};
};

// A part of a layer, of which tasks are that bring rows together and add up sums.
enum class Block {
  kAttention,
  kCross,  // a decoder's attention to the encoder's output
  kDense,  // a feed-forward block without experts
};

using TaskId = int32_t;  // its place in Schedule::tasks

struct Task {
  TaskKind kind = TaskKind::kAttention;
  Lane lane = {};
  int layer = -1;                   // of its stack; -1: of the whole step
  int micro_batch = -1;             // -1: the only one
  int chunk = -1;                   // of an expert stage's work; -1: the only one
  bool encoder = false;             // of the encoder's stack
  Block block = Block::kAttention;  // of attention, and of kinds that several blocks have
  std::vector<TaskId> after =
      {};  // what must be done before it, besides what is before it on its lane
  // Tasks of several ranks with the same number are one collective: it starts when all are there,
  // also when it moves nothing. -1: none.
  int collective = -1;
  Work work = {};
};

struct Schedule {
  int num_ranks = 1;
  // Each after those before it on its lane and (within a rank) after those that it waits for.
  std::vector<Task> tasks = {};
};

std::string_view Name(LaneKind kind);  // "compute"
std::string_view Name(TaskKind kind);  // "gather_normed"
std::string_view Name(SizeKind kind);  // "rows"
bool IsCollective(TaskKind kind);
bool IsCommunication(TaskKind kind);  // a collective, or a copy between tiers

// "experts L3 m1 c2", "attention L3 cross": kind and coordinates, without the rank.
std::string Label(const Task& task);

// Errors: a rank, lane or dependency that is not there, a task that waits for a later one of its
// own rank, a cycle (also through lanes and collectives), a collective that two ranks enter in
// different orders, as different kinds, on different lanes, or twice; a kind that is collective
// without a number, or the reverse. Linear in tasks and dependencies.
Status Validate(const Schedule& schedule);

// A line per task, for people and golden tests:
//   r0 compute experts L3 c2 <- r0 dispatch L3 c2, r0 route L3 : flops 25165824*slots(L3 c2 r0)
// After a collective's label stands its number, as #5. `with_work` false: without what follows the
// colon.
std::string ToText(const Schedule& schedule, bool with_work = true);

}  // namespace convene::schedule
