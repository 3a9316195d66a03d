// The operations of a model's decode step as points on the hierarchical roofline of two tiers
// (Cao et al., "MoE-Lightning", ASPLOS 2025, section 3.3): attention over a cache in the slow tier,
// and experts whose weights lie there.
#pragma once

#include "cost/hierarchical_roofline.h"
#include "planner/offload_model.h"

namespace convene::planner {

// Scores and values of one generated token of each sequence, without projections. How many
// sequences there are changes no intensity. `resident`: the share of the cache in the fast tier.
cost::TierWork AttentionWork(const OffloadModel& model, double context, double kv_element_bytes,
                             double resident = 0);

// Routed experts and dense feed-forward layers of a step of `batch` sequences: the slow tier's
// weights are read once for all, the fast tier's once for each micro-batch. `resident`: the share
// of the weights in the fast tier.
cost::TierWork ExpertsWork(const OffloadModel& model, double batch, double micro_batch,
                           double weight_bytes, double resident = 0);

// The smallest batch of which ExpertsWork has at least that intensity in the slow tier; 0: none up
// to `most` has.
int BatchOfIntensity(const OffloadModel& model, double intensity, double weight_bytes,
                     double resident = 0, int most = 1 << 24);

}  // namespace convene::planner
