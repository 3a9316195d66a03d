// How long the exchanges of a step that ran had a link that all ranks share: what a simulation that
// shares it asks for, so that the same exchanges take the same time again. How long an exchange
// took is schedule/timeline.h's; while others are under way, too, that is longer.
#pragma once

#include <vector>

#include "schedule/activity_graph.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace convene::cost {

// By activity: of an exchange the seconds between when its last rank had come to it and when all
// ranks were through with it, those in which n exchanges were under way counting as 1/n each; 0 of
// all else, and of what did not run. So all exchanges together have as long as any was under way,
// which is what they had of one link. Precondition: the graph and the times are the schedule's.
std::vector<double> LinkSeconds(const schedule::Schedule& schedule,
                                const schedule::ActivityGraph& graph,
                                const schedule::Timeline& timeline);

}  // namespace convene::cost
