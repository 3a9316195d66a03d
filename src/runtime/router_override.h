// Routing made up for experiments: a share of the tokens goes to the first few experts, the rest to
// all others alike ("Expert slicing", systems: sliced experts); or experts are chosen as often as
// was recorded of a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convene::runtime {

struct RouterOverride {
  double skew = -1;     // share of the tokens; less than 0: the model's own routing
  int num_experts = 0;  // the first ones, which those tokens go to; at least top_k
  // Or by layer of the decoder and expert, the share of the tokens that choose it; a layer's sum is
  // its top_k, and a layer without experts has none. Encoders keep the model's own routing.
  std::vector<std::vector<double>> shares = {};

  bool is_recorded() const { return !shares.empty(); }
  bool is_set() const { return skew >= 0 || is_recorded(); }
};

// Of a token at its place in its sequence, in one layer; the same wherever and beside whatever it
// is computed.
uint64_t TokenKey(int layer, int position, int32_t token);

// Overwrites one token's experts, in increasing order; `key` tells tokens apart. Weights stay. For
// routing by a skew.
void OverrideExperts(const RouterOverride& router, int num_experts, uint64_t key,
                     std::span<int32_t> experts);
// The same where expert i is to be among them with the probability shares[i]. Precondition: at
// least as many experts as a token chooses.
void ChooseByShares(std::span<const double> shares, uint64_t key, std::span<int32_t> experts);

}  // namespace convene::runtime
