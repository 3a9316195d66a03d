// Which of the ranks with experts alone is slow, and how much: by what the tasks of the others took
// for their work.
#pragma once

#include <string>
#include <vector>

#include "drawing/trace.h"

namespace convene::drawing {

// Of ranks with experts alone the one that needs longest for as much work as the others.
struct SlowestExperts {
  int rank = -1;  // -1: there are not two such ranks, or nothing was measured
  // Its seconds over those that the others' tasks say: so much per FLOP, and so much per byte that
  // is read, as fits their seconds best. With many rows FLOPs decide, and with few, as in decode,
  // the weights of the experts that are visited.
  double ratio = 0;
};

// `roles` as RoleNames has them.
SlowestExperts FindSlowestExperts(const TracedStep& step, const std::vector<std::string>& roles);

}  // namespace convene::drawing
