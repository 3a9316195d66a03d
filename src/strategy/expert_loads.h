// How the experts of ranks change between two phases without a word between ranks. What that is as
// tasks is transition.h; what a rank keeps for it, weights/expert_backup.h.
#pragma once

#include "strategy/role.h"

namespace convene::strategy {

// What each rank keeps in its host's memory of the experts that another phase has (HAP, section
// III-B): those of decode that it has not in prefill in int4, those of prefill that it has not in
// decode as they are. So nothing of a change goes to another rank.
struct ExpertLoads {
  Roles from;
  Roles to;
  double bytes = 2;      // of an element of weights
  bool rounded = false;  // what `from` has not was kept in int4

  bool operator==(const ExpertLoads&) const = default;
};

}  // namespace convene::strategy
