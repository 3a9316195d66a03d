#include "engine/crossovers.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "hardware/topology.h"

namespace convene::engine {

ComputesWith ComputesHereWith(const char* isa, std::vector<int> cpus) {
  ComputesWith here{.cpu = {}, .isa = isa, .cpus = std::move(cpus)};
  const Result<hardware::Topology> topology = hardware::ReadTopology();
  if (topology) here.cpu = topology->cpu;
  return here;
}

// Names of CPUs, instruction sets and numbers are alike on many machines, and a directory of
// profiles may be shared between them.
bool IsOf(const hardware::Profile& profile, const ComputesWith& here) {
  if (!WhyAnotherCpu(profile.cpu(), here.cpu).empty() || profile.isa != here.isa) return false;
  return std::ranges::all_of(here.cpus, [&](int cpu) {
    return std::ranges::find(profile.cpus, cpu) != profile.cpus.end();
  });
}

Crossovers CrossoversOf(const std::optional<hardware::Profile>& profile, const ComputesWith& here) {
  if (!profile || !IsOf(*profile, here)) return {};
  return {.dense_from_rows = profile->dense_from_rows,
          .expand_from_tokens = profile->expand_from_tokens};
}

std::optional<kernels::StreamingChoice> StreamingOf(const std::optional<hardware::Profile>& profile,
                                                    const ComputesWith& here) {
  if (!profile || !IsOf(*profile, here)) return std::nullopt;
  return kernels::StreamingChoice::FromNumbers(profile->panel_streaming);
}

Crossovers AgreeOnCrossovers(comm::Group* group, Crossovers mine) {
  if (group == nullptr || group->size() == 1) return mine;
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  std::vector<std::byte> told(bytes.begin(), bytes.end());
  group->Broadcast(0, &told, "telling from where on forms change");
  CHECK(told.size() == sizeof(mine), "{} bytes", told.size());
  std::memcpy(&mine, told.data(), sizeof(mine));
  return mine;
}

}  // namespace convene::engine
