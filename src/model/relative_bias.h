// Attention scores by distance, as T5 has them (Raffel et al., 2020, section 2.1; transformers
// models/t5): distances share buckets, ever wider ones, and a table has a score per bucket and
// head.
#pragma once

#include <span>
#include <vector>

#include "model/model_spec.h"

namespace convene::model {

// The bucket of a key that is `distance` positions behind its query (negative: before it).
// `bidirectional`: keys behind the query have buckets of their own, as in an encoder.
int RelativeBucket(const RelativeBiasSpec& spec, int distance, bool bidirectional);

// `table` (num_buckets, num_heads) by distance: (num_heads, 2 * max_distance + 1 + 2 * padding),
// the score of distance d at padding + max_distance + d; the ends are repeated in the padding.
// From max_distance on all distances share a bucket.
std::vector<float> BiasByDistance(const RelativeBiasSpec& spec, std::span<const float> table,
                                  int num_heads, bool bidirectional, int padding);

}  // namespace convene::model
