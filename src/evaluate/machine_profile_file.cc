#include "evaluate/machine_profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
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

std::string WhyAnotherMachine(const hardware::Profile& measured, const hardware::CpuIdentity& here,
                              std::string_view isa) {
  std::string why = hardware::WhyAnotherCpu(measured.cpu(), here);
  if (why.empty() && measured.isa != isa) {
    why = fmt::format("it was measured with the instruction set {}, and this is {}",
                      Printable(measured.isa), isa);
  }
  return why;
}

bool IsOfSameMachine(const cost::MachineProfile& a, const cost::MachineProfile& b) {
  return WhyAnotherMachine(a.machine, b.machine.cpu(), b.machine.isa).empty();
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

std::optional<kernels::StreamingChoice> StreamingWhileMeasuring(
    comm::Group& group, const cost::MachineProfile& measured, const std::string& path,
    const engine::ComputesWith& here) {
  std::string text;
  if (group.rank() == 0) {
    cost::MachineProfile kept{.machine = measured.machine};
    if (group.size() > 1) kept.steps.emplace_back().num_ranks = group.size();
    text = hardware::ToJson(WithKept(std::move(kept), path).machine)
               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  const auto bytes = std::as_bytes(std::span(text));
  std::vector<std::byte> told(bytes.begin(), bytes.end());
  group.Broadcast(0, &told, "telling how panels are read");
  const Result<nlohmann::json> parsed =
      ParseJson({reinterpret_cast<const char*>(told.data()), told.size()});
  const Result<hardware::Profile> machine =
      parsed ? hardware::ProfileFromJson(*parsed) : Result<hardware::Profile>(parsed.error());
  return machine ? engine::StreamingOf(*machine, here) : std::nullopt;
}

}  // namespace convene::evaluate
