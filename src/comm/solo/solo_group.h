// A group of one rank: what it sends to itself is there at once. Costs nothing and needs nothing.
#pragma once

#include <memory>

#include "comm/group.h"

namespace convene::comm {

std::unique_ptr<Group> MakeSoloGroup();

}  // namespace convene::comm
