// Which page of experts gives its memory to another one, where all of them cannot stay.
#pragma once

#include <cstdint>

namespace convene::weights {

enum class PageEviction : uint8_t {
  // What will be wanted last: by how often steps wanted it, counts being halved now and then, so
  // that
  // what was long ago fades, and by how many layers there are until its own comes again.
  kLeastUsed,
  kLongestUnused  // least recently used
};

}  // namespace convene::weights
