// The first ranks of a group as a group of their own, while the others do nothing: for work that
// takes fewer ranks than were started. It sends over the group it is of.
#pragma once

#include <memory>

#include "comm/group.h"

namespace convene::comm {

// Keeps the reference. The ranks below `num_ranks` call it, and all calls of the new group are
// theirs alone; meanwhile none of the old group is made. Precondition: rank() < num_ranks <=
// size().
std::unique_ptr<Group> FirstRanks(Group& all, int num_ranks);

}  // namespace convene::comm
