// What somebody has decided of a plan already: whether that goes together, and the pass that leaves
// out what it would mean nothing for. The decisions themselves are Constraints.
#pragma once

#include "base/result.h"
#include "planner/plan_search.h"

namespace convene::planner {

// Errors: a layout for more ranks than there are; a division of decode, or chunks, that do not go
// with the layout.
Status CheckConstraints(const PlanQuestion& question);

// Rejects one rank where chunks, micro-batches or rows in fewer bytes were asked for, and layouts
// whose ranks have fewer experts than the chunks of experts that were.
void RejectUnasked(PlanSearch& search);

}  // namespace convene::planner
