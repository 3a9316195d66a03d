// Which page of experts gives its memory to another one, where all of them cannot stay.
#pragma once

#include <cstdint>

namespace convene::weights {

enum class PageEviction : uint8_t {
  kLeastUsed,     // counts of uses, halved now and then, so that what was used long ago fades
  kLongestUnused  // least recently used
};

}  // namespace convene::weights
