// What ranks of a step do by their names, where some have attention and others the experts
// (strategy/role.h). Found in the schedule itself, so that traces and predictions have them alike.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace convene::drawing {

// By rank "attention" or "experts"; all "" where some rank has both, or none has the one or the
// other.
std::vector<std::string> RoleNames(const schedule::Schedule& schedule);

// "rank 2", or "rank 2 (experts)".
std::string RankName(int rank, const std::string& role);

}  // namespace convene::drawing
