// Routing made up for experiments: a share of the tokens goes to the first few experts, the rest to
// all others alike ("Expert slicing", systems: sliced experts).
#pragma once

#include <cstdint>
#include <span>

namespace convene::runtime {

struct RouterOverride {
  double skew = -1;     // share of the tokens; less than 0: the model's own routing
  int num_experts = 0;  // the first ones, which those tokens go to; at least top_k

  bool is_set() const { return skew >= 0; }
};

// Of a token at its place in its sequence, in one layer; the same wherever and beside whatever it
// is computed.
uint64_t TokenKey(int layer, int position, int32_t token);

// Overwrites one token's experts, in increasing order; `key` tells tokens apart. Weights stay.
void OverrideExperts(const RouterOverride& router, int num_experts, uint64_t key,
                     std::span<int32_t> experts);

}  // namespace convene::runtime
