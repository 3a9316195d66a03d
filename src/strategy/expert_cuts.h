// Which experts of a rank are which chunk, where chunks are cut by experts. The one place that says
// so: ranks that send, ranks that compute and expectations all ask it.
#pragma once

#include <vector>

#include "strategy/step.h"

namespace convene::strategy {

// By chunk the end of its experts among `num_experts` of a rank, where the next one's begin. As
// Pipeline::cuts says, to the nearest expert, or as many in each as division allows, the first ones
// one more; each has an expert as long as there are as many experts as chunks.
std::vector<int> ExpertEnds(const Pipeline& pipeline, int num_experts);

}  // namespace convene::strategy
