// Whether numbers are finite, by their bits: neither NaN nor infinity gets past it, and it costs a
// pass at the speed of a cache.
#pragma once

#include <span>

#include "tensor/dtype.h"

namespace convene::tensor {

// Whether none of them is NaN or infinite.
bool AllFinite(std::span<const float> values);
bool AllFinite(std::span<const Bf16> values);

}  // namespace convene::tensor
