// The profile of a machine that is nowhere, for tests of commands that price plans.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cost/machine_profile.h"
#include "planner/invented_costs_test.h"

namespace convene::cli {

// Costs of one rank and of two, with weights in bf16, as convene measure writes them.
inline std::string InventedProfile() {
  cost::MachineProfile profile;
  for (const int ranks : {1, 2}) {
    profile.steps.push_back(planner::InventedCosts(ranks, 1e9, "bf16"));
  }
  return cost::ToJson(profile).dump();
}

}  // namespace convene::cli
