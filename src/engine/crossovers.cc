#include "engine/crossovers.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"

namespace convene::engine {

namespace {

bool IsOf(const std::optional<hardware::Profile>& profile, const char* isa,
          const std::vector<int>& cpus) {
  if (!profile || profile->isa != isa) return false;
  const std::vector<int>& measured = profile->cpus;
  return std::all_of(cpus.begin(), cpus.end(), [&](int cpu) {
    return std::find(measured.begin(), measured.end(), cpu) != measured.end();
  });
}

}  // namespace

Crossovers CrossoversOf(const std::optional<hardware::Profile>& profile, const char* isa,
                        const std::vector<int>& cpus) {
  if (!IsOf(profile, isa, cpus)) return {};
  return {.dense_from_rows = profile->dense_from_rows,
          .expand_from_tokens = profile->expand_from_tokens};
}

std::optional<kernels::StreamingChoice> StreamingOf(const std::optional<hardware::Profile>& profile,
                                                    const char* isa, const std::vector<int>& cpus) {
  if (!IsOf(profile, isa, cpus)) return std::nullopt;
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
