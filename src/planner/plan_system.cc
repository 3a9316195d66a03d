#include "planner/plan_system.h"

namespace convene::planner {

PlanSystem SystemOf(const Candidate& candidate) {
  const strategy::Layout& layout = candidate.plan.layout;
  const int num_ranks = candidate.setup.num_ranks;
  if (num_ranks == 1) return PlanSystem::kOneRank;
  if (layout.disaggregates) return PlanSystem::kDisaggregated;
  if (layout.stages > 1) return PlanSystem::kLayers;
  if (candidate.plan.changes_layout()) return PlanSystem::kHybrid;
  if (layout.expert_tp == 1) return PlanSystem::kExpert;
  const bool cuts_all = layout.attention_tp == num_ranks && layout.expert_tp == num_ranks;
  return cuts_all ? PlanSystem::kTensor : PlanSystem::kSliced;
}

}  // namespace convene::planner
