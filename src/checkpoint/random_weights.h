// Random bf16 weights that depend on nothing but a key and their place in the tensor, so that any
// thread can write any part. Good enough to look like weights; not for statistics or security.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/dtype.h"

namespace convene::checkpoint {

// The key of the tensor `name` under a seed.
uint64_t RandomKey(uint64_t seed, std::string_view name);

// Parts begin at multiples of so many elements.
inline constexpr int64_t kRandomBlock = 1 << 16;

// Elements [first, first + out.size()) of the tensor with this key: about normally distributed (the
// sum of four uniform numbers, so at most 3.5 standard deviations) with mean 0 and deviation `std`,
// rounded to bf16. `first` is a multiple of kRandomBlock.
void FillNormal(uint64_t key, int64_t first, float std, std::span<tensor::Bf16> out);

}  // namespace convene::checkpoint
