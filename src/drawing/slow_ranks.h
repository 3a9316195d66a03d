// Which ranks with attention or with experts alone are slow, by what the others with the same role
// took for their work. A rank that is alone in its role is compared with nobody.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "drawing/trace.h"

namespace convene::drawing {

struct SlowRank {
  std::string steps;  // of which kind: what a step's name begins with, "prefill" or "decode"
  int rank = 0;
  std::string role;  // as RoleNames
  // What its tasks took over what the others' tasks say of their work, in the median by time; where
  // only some of them were stopped, all together.
  double ratio = 0;
};

// Over all steps of a kind together, in the order of the first of each; within, by rank. What a
// kind of task takes is so much per FLOP and so much per byte that is read, as fits the tasks of
// the other ranks best: with many rows FLOPs decide, and with few, as in decode, the weights of the
// experts that are visited. A rank is slow where three quarters of its work took more than a
// quarter longer than that: a task that the system held up makes nobody slow, and many small ones,
// which a limit on the rank's processor time lets through, hide nobody. Where such a limit lets
// more through, a rank is slow of which at least 3 tasks took more than a quarter longer, and all
// but the worst of its tasks together more than half longer, both than that and than all tasks of
// the others did in the median of these. Fewer than 6 tasks say nothing. Where nobody is slow,
// there is none.
std::vector<SlowRank> FindSlowRanks(std::span<const TracedStep> steps);

}  // namespace convene::drawing
