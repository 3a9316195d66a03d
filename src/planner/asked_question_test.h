// A question of several ranks with costs that were invented, which tests of the search and its
// passes change.
#pragma once

#include <string>
#include <vector>

#include "planner/invented_costs_test.h"
#include "planner/plan_search.h"

namespace convene::planner {

// A question whose parts live as long as it.
struct Asked {
  explicit Asked(double link_bytes_per_second, const std::vector<int>& ranks = {1, 2, 4},
                 const std::vector<std::string>& formats = {"bf16"})
      : spec(InventedSpec(24)) {
    for (const int count : ranks) {
      for (const std::string& format : formats) {
        profile.steps.push_back(InventedCosts(count, link_bytes_per_second, format));
      }
    }
    question.formats = formats;
    question.num_ranks = ranks.back();
    question.constraints.keeps_step_tokens = true;  // tests of these let them be chosen
    question.memory_of = [](const RankSetup& setup, const plan::Plan& plan,
                            int batch) -> Result<RankMemory> {
      const uint64_t bits = setup.weights == "bf16" ? 16 : setup.weights == "int8" ? 8 : 4;
      const auto parts = static_cast<uint64_t>(plan.layout.num_ranks());
      return RankMemory{.weights_bytes = (bits << 20) / parts,
                        .kv_bytes = static_cast<uint64_t>(batch) << 10};
    };
    question.memory_per_rank = [](int) { return uint64_t{1} << 30; };
    question.bytes_of = [](const std::string&, plan::Wire wire) {
      strategy::ElementBytes bytes;
      bytes.sums = wire == plan::Wire::kF32 ? 4 : 2;
      bytes.returned = wire == plan::Wire::kFp8Both ? 1 : bytes.sums;
      bytes.dispatched = wire == plan::Wire::kFp8 || wire == plan::Wire::kFp8Both ? 1 : 2;
      return bytes;
    };
    question.clock = [] { return 0.0; };
  }

  model::ModelSpec spec;
  cost::MachineProfile profile;
  Workload workload = {.requests = {{512, 64}}, .batch = 8};
  MeasuredSource source{profile};
  PlanQuestion question{.spec = spec, .workload = workload, .source = source};
};

inline std::string ErrorOf(const Asked& asked) {
  const Result<PlanAnswer> answer = SearchPlan(asked.question);
  return answer ? "" : answer.error().message;
}

}  // namespace convene::planner
