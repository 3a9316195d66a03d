#include "device/expert_placement.h"

#include <algorithm>

#include "strategy/expert_cuts.h"

namespace convene::device {

ExpertPlacement::ExpertPlacement(int rank, const strategy::Roles& roles)
    : rank_(rank),
      num_ranks_(roles.num_ranks()),
      roles_(roles),
      experts_of_(static_cast<size_t>(num_ranks_)) {}

void ExpertPlacement::Use(const strategy::Roles& roles, const strategy::Pipeline& pipeline) {
  roles_ = roles;
  pipeline_ = pipeline;
  is_placed_ = false;
}

void ExpertPlacement::BeginLayer(int num_experts) {
  if (is_placed_ && num_experts == num_experts_) return;
  is_placed_ = true;
  num_experts_ = num_experts;
  share_of_.assign(static_cast<size_t>(num_experts), 0);
  chunk_of_.assign(by_experts() ? share_of_.size() : 0, 0);
  for (int share = 0; share < roles_.expert_split().num_shares(); ++share) {
    const strategy::Part part = roles_.expert_split().experts(share, num_experts);
    std::fill_n(share_of_.begin() + part.first, part.size, share);
    if (!by_experts()) continue;
    int32_t chunk = 0;
    int begin = 0;
    for (const int end : strategy::ExpertEnds(pipeline_, part.size)) {
      std::fill(chunk_of_.begin() + part.first + begin, chunk_of_.begin() + part.first + end,
                chunk++);
      begin = end;
    }
  }
  for (int rank = 0; rank < num_ranks_; ++rank) {
    experts_of_[rank] = roles_.ExpertsOf(rank, num_experts);
  }
}

}  // namespace convene::device
