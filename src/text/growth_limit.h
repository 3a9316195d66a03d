// Bounds what the steps of a tokenizer may do to a text: published ones have a handful of steps
// that grow it a few times, a hostile one could double it in every step. It does not bound time.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace convene::text {

// Steps that a normalizer, pre-tokenizer or decoder may have.
inline constexpr size_t kMaxSteps = 64;

// An error if `bytes`, the size a step gave or would give to a text of `original_bytes`, is too
// much.
inline Status CheckGrowth(size_t original_bytes, size_t bytes) {
  const size_t max_bytes = 64 * original_bytes + (size_t{1} << 20);
  if (bytes <= max_bytes) return {};
  return Error{fmt::format(
      "the tokenizer's steps make {} bytes of a text of {} bytes; at most {} are allowed", bytes,
      original_bytes, max_bytes)};
}

}  // namespace convene::text
