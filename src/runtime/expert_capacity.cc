#include "runtime/expert_capacity.h"

#include "base/check.h"

namespace convene::runtime {

void ExpertCapacity::Apply(int layer, int num_experts, std::span<const CapacityRow> rows,
                           std::span<const int32_t> experts, std::span<float> weights) {
  CHECK(rows.size() == experts.size() && rows.size() == weights.size(), "{} rows, {} experts",
        rows.size(), experts.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].counts) continue;
    std::vector<int>& taken = taken_[{rows[i].sequence, layer}];
    if (rows[i].first || taken.empty()) taken.assign(num_experts, 0);
    if (++taken[experts[i]] > capacity_) weights[i] = 0;
  }
}

}  // namespace convene::runtime
