// The unit of the KV cache that tasks read and write. How a block lies in memory is the kernels'
// matter (kernels/kernel_set.h).
#pragma once

namespace convene::strategy {

// Positions in one block of the KV cache. Kernels of a device have the same number, which the
// device compares.
inline constexpr int kKvBlockTokens = 64;

}  // namespace convene::strategy
