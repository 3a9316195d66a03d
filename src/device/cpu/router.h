// The router of a layer as kernels/route.h wants it.
#pragma once

#include "kernels/route.h"
#include "model/model_spec.h"
#include "weights/model_weights.h"

namespace convene::device {

// Points into `weights`.
kernels::Router RouterOf(const model::MoeSpec& moe, const weights::MoeWeights& weights);

}  // namespace convene::device
