// What each kind of task is: its name, whether ranks do it together, and what it reads and writes.
// Strategies, the checker of hazards, the executor, the simulator and traces look it up here; what
// a kind does on a rank is the other half, runtime/step_operators.cc, which has one operator per
// kind.
#pragma once

#include <span>
#include <string_view>

#include "schedule/schedule.h"

namespace convene::schedule {

// What tasks touch. All but the last group belongs to a frame, that is to one micro-batch on one
// rank (device/frame.h).
enum class Thing {
  kHidden,   // the residual stream
  kNormed,   // rows after their norm
  kQkv,      // projections
  kSquares,  // sums of squares of projections
  kHostQkv,  // these on the host beside a device
  kHostAttended,
  kAttended,     // attention's output before its projection
  kPartial,      // attention's output of some heads, as this rank has it
  kPartialsOut,  // the same, packed for the rows' owners
  kPartialsIn,
  kRouting,  // experts and weights of each row
  kCountsOut,
  kCountsIn,
  kOutgoing,  // rows packed for the ranks of their experts; by chunk, as are the next ones
  kIncoming,
  kSlots,    // experts' outputs
  kSumsOut,  // sums of a row's experts, packed for the row's owner
  kSumsIn,
  kWork,      // which rows the experts of this rank have, and where their outputs are
  kShared,    // the shared expert's output
  kGathered,  // rows whose logits are wanted, of other ranks
  // Of a rank: all its frames share it.
  kLogits,      // of the rows in work, for its tokens of the vocabulary
  kLogitsIn,    // for those of the others
  kCache,       // keys and values; by layer
  kPinned,      // a page in pinned memory; by layer and chunk. That its buffer is used again is not
                // here.
  kPages,       // streamed weights on the device, which has room for two layers
  kPrediction,  // experts that the next layer will probably choose; by layer, that of its routing
  kHeldPages,   // experts that were read from a disk; by layer and chunk. That held ones are not
                // replaced is the store's matter (weights/paged_weights.h).
  kHeldKv,      // keys and values from a slower tier; by layer and chunk. That a buffer of
                // theirs is used again is not here.
  kDivision,    // which experts the rank has in memory; by layer
};
inline constexpr int kNumThings = static_cast<int>(Thing::kDivision) + 1;

inline constexpr bool IsShared(Thing thing) { return thing >= Thing::kLogits; }

enum class Reach {
  kOne,        // of the task's chunk (or layer)
  kAllChunks,  // also what other chunks have of it
  kAllLayers,
};

struct Access {
  Thing thing = Thing::kHidden;
  bool writes = false;
  Reach reach = Reach::kOne;
};

struct TaskTraits {
  std::string_view name;       // "gather_normed"
  bool is_collective = false;  // of several ranks
  bool is_copy = false;        // between tiers
  // Without the workspace, which is only the task's in work. Where accesses depend on the layout,
  // those of all layouts.
  std::span<const Access> accesses = {};
};

const TaskTraits& TraitsOf(TaskKind kind);

}  // namespace convene::schedule
