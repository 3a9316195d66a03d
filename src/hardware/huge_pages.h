// How much of some memory consists of huge pages. It changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace convene::hardware {

// Bytes that the kernel holds in huge pages now, of this process's own memory, of shared memory and
// of mapped files. Mappings that `memory` lies in are counted whole. 0 before the pages were
// touched, and where the kernel does not tell. Reads /proc/self/smaps: milliseconds.
uint64_t HugePageBytes(std::span<const std::byte> memory);

}  // namespace convene::hardware
