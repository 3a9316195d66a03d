// What the ranks of a plan hold of a model's weights, where some have attention and others the
// experts: for those who show what a run takes, since rank 0 knows what it holds itself and no
// more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "plan/plan.h"
#include "weights/model_weights.h"

namespace convene::engine {

// The ranks of one role, in increasing order, and what each holds, packed.
struct RoleWeights {
  std::string role;  // strategy::Role::name
  std::vector<int> ranks;
  std::vector<uint64_t> bytes;  // by rank of `ranks`
};

// By role; none where ranks have both. Precondition: the model can be divided so
// (weights::LocalSpec).
std::vector<RoleWeights> RoleWeightsOf(const model::ModelSpec& whole,
                                       const weights::WeightFormats& formats,
                                       const plan::Plan& plan);

// "3.56 MiB on rank 0 (attention), 6.02 MiB on each of ranks 1, 2 (experts)"
std::string Words(const std::vector<RoleWeights>& roles);

}  // namespace convene::engine
