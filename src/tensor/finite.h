// Whether numbers are finite, in one pass at the speed of a cache: every weight and every row of
// logits goes through here.
#pragma once

#include <span>

#include "tensor/dtype.h"

namespace convene::tensor {

// Whether none of them is NaN or infinite.
bool AllFinite(std::span<const float> values);
bool AllFinite(std::span<const Bf16> values);

}  // namespace convene::tensor
