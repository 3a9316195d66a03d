#include "evaluate/machine_profile_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/read_file.h"

namespace convene::evaluate {
namespace {

constexpr uint64_t kMostFileBytes = uint64_t{16} << 20;

}  // namespace

Result<cost::MachineProfile> LoadMachineProfile(const std::string& path) {
  constexpr const char* kRemedy = "measure one with: convene measure --out FILE";
  const Result<std::string> text = ReadFile(path, kMostFileBytes);
  if (!text) return Error{fmt::format("{}: {}", text.error().message, kRemedy), text.error().kind};
  const Result<nlohmann::json> parsed = ParseJson(*text);
  Result<cost::MachineProfile> profile =
      parsed ? cost::MachineProfileFromJson(*parsed) : Result<cost::MachineProfile>(parsed.error());
  if (profile) return profile;
  return Error{fmt::format("{} is not a profile of a machine ({}): {}", path,
                           profile.error().message, kRemedy)};
}

bool IsOfSameMachine(const cost::MachineProfile& a, const cost::MachineProfile& b) {
  return a.machine.cpu_name == b.machine.cpu_name && a.machine.isa == b.machine.isa;
}

cost::MachineProfile WithKept(cost::MachineProfile profile, const std::string& path) {
  Result<cost::MachineProfile> kept = LoadMachineProfile(path);
  const bool several = std::any_of(profile.steps.begin(), profile.steps.end(),
                                   [](const auto& costs) { return costs.num_ranks > 1; });
  if (!kept || !IsOfSameMachine(*kept, profile)) return profile;
  for (cost::StepCosts& costs : kept->steps) {
    const bool is_new =
        profile.CostsOf(costs.num_ranks, costs.num_threads, costs.weights) != nullptr;
    if (!is_new) profile.steps.push_back(std::move(costs));
  }
  if (several) profile.machine = std::move(kept->machine);
  profile.operators.merge(kept->operators);
  return profile;
}

}  // namespace convene::evaluate
