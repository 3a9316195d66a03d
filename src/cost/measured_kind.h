// As which kind of task one is measured that steps of a profile do not have by itself.
#pragma once

#include "schedule/schedule.h"

namespace convene::cost {

// Attention in pieces, as spilled keys and values have it, is measured as a whole: its seconds are
// a sum over parts of its work (task_cost.h), of which each piece has some.
inline schedule::TaskKind MeasuredAs(schedule::TaskKind kind) {
  using enum schedule::TaskKind;
  return kind == kPreAttention || kind == kAttend || kind == kPostAttention || kind == kCrossStore
             ? kAttention
             : kind;
}

}  // namespace convene::cost
