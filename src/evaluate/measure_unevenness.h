// What it costs on a link that ranks send unlike numbers of bytes (cost::ExchangeCost::unevenness).
#pragma once

#include "comm/group.h"

namespace convene::evaluate {

// *Collective*, some 100 ms on a link of 100 MB/s, seconds on slow ones: as many bytes from rank 0
// alone to all others as all ranks send each other in even parts, in turn. 0: they take as long, as
// where all share one medium; 1: they take as much longer as the one rank has more to send, as
// where each has a rate of its own in both directions. The same on all ranks; of one rank 0. Of
// more than four ranks four send and receive, far from each other.
double MeasureUnevenness(comm::Group& group);

}  // namespace convene::evaluate
