// Memory that is in no cache, for measurements of what has to come from memory.
#pragma once

#include <cstddef>
#include <span>

namespace convene::hardware {

// Takes all lines of `bytes` out of the caches of all cores, and writes those back that were
// changed; nothing else in the caches moves. Takes about as long as reading them.
void DropFromCaches(std::span<const std::byte> bytes);

}  // namespace convene::hardware
