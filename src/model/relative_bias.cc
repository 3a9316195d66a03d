#include "model/relative_bias.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace convene::model {

int RelativeBucket(const RelativeBiasSpec& spec, int distance, bool bidirectional) {
  int buckets = spec.num_buckets;
  int first = 0;
  int steps = std::max(-distance, 0);
  if (bidirectional) {
    buckets /= 2;
    if (distance > 0) first = buckets;
    steps = std::abs(distance);
  }
  const int exact = buckets / 2;
  if (steps < exact) return first + steps;
  // In float, as the reference implementation rounds it.
  const float share = std::log(static_cast<float>(steps) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(double(spec.max_distance) / exact));
  const int wide = exact + static_cast<int>(share * static_cast<float>(buckets - exact));
  return first + std::min(wide, buckets - 1);
}

std::vector<float> BiasByDistance(const RelativeBiasSpec& spec, std::span<const float> table,
                                  int num_heads, bool bidirectional, int padding) {
  CHECK(std::ssize(table) == int64_t{spec.num_buckets} * num_heads, "{} scores", table.size());
  const int reach = spec.max_distance;
  std::vector<float> bias;
  for (int head = 0; head < num_heads; ++head) {
    for (int i = -reach - padding; i <= reach + padding; ++i) {
      const int bucket = RelativeBucket(spec, std::clamp(i, -reach, reach), bidirectional);
      bias.push_back(table[size_t(bucket) * num_heads + head]);
    }
  }
  return bias;
}

}  // namespace convene::model
