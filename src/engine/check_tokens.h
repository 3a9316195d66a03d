// Token ids from outside, held against a vocabulary. Not a tokenizer.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace convene::engine {

// Error: the first id below zero or not below `vocab_size`, with its place.
Status CheckTokens(std::span<const int32_t> tokens, int vocab_size);

}  // namespace convene::engine
