#include "cost/machine_profile.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace convene::cost {

const StepCosts* MachineProfile::CostsOf(int num_ranks, int num_threads,
                                         std::string_view weights) const {
  for (const StepCosts& costs : steps) {
    const bool same = costs.num_ranks == num_ranks && costs.num_threads == num_threads;
    if (same && costs.weights == weights) return &costs;
  }
  return nullptr;
}

nlohmann::ordered_json ToJson(const MachineProfile& profile) {
  nlohmann::ordered_json json = hardware::ToJson(profile.machine);
  json["steps"] = nlohmann::ordered_json::array();
  for (const StepCosts& costs : profile.steps) json["steps"].push_back(ToJson(costs));
  return json;
}

Result<MachineProfile> MachineProfileFromJson(const nlohmann::json& json) {
  MachineProfile profile;
  Result<hardware::Profile> machine = hardware::ProfileFromJson(json);
  if (!machine) return machine.error();
  profile.machine = *std::move(machine);
  const auto steps = json.find("steps");
  if (steps == json.end()) return profile;
  if (!steps->is_array()) return Error{"a profile's \"steps\" are no list"};
  for (const nlohmann::json& each : *steps) {
    Result<StepCosts> costs = StepCostsFromJson(each);
    if (!costs) return costs.error();
    if (profile.CostsOf(costs->num_ranks, costs->num_threads, costs->weights) != nullptr) {
      return Error{fmt::format("a profile has the costs of {} ranks with {} threads and weights in "
                               "{} twice",
                               costs->num_ranks, costs->num_threads, costs->weights)};
    }
    profile.steps.push_back(*std::move(costs));
  }
  return profile;
}

}  // namespace convene::cost
