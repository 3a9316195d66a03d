// All that is known of a machine: what it is and how fast (hardware/profile.h), and what tasks of
// steps cost on it, alone and beside other ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/step_costs.h"
#include "hardware/profile.h"

namespace convene::cost {

struct MachineProfile {
  hardware::Profile machine;
  std::vector<StepCosts> steps;  // by ranks, threads and format; none twice

  // Null: not measured.
  const StepCosts* CostsOf(int num_ranks, int num_threads, std::string_view weights) const;
};

// The machine's object, with "steps" beside its keys: so a file with both is also a profile of the
// machine alone.
nlohmann::ordered_json ToJson(const MachineProfile& profile);
// Errors: as hardware::ProfileFromJson and StepCostsFromJson.
Result<MachineProfile> MachineProfileFromJson(const nlohmann::json& json);

}  // namespace convene::cost
