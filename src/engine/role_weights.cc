#include "engine/role_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "weights/load_weights.h"
#include "weights/share.h"

namespace convene::engine {

std::vector<RoleWeights> RoleWeightsOf(const model::ModelSpec& whole,
                                       const weights::WeightFormats& formats,
                                       const plan::Plan& plan) {
  const strategy::Roles roles = plan.layout;
  std::vector<RoleWeights> by_role;
  for (int rank = 0; rank < roles.num_ranks() && !roles.are_whole(); ++rank) {
    const std::string name = roles.of(rank).name();
    auto found = std::ranges::find(by_role, name, &RoleWeights::role);
    if (found == by_role.end()) {
      by_role.push_back({.role = name, .ranks = {}, .bytes = {}});
      found = by_role.end() - 1;
    }
    const weights::Share share = weights::ShareOf(roles, rank);
    const Result<model::ModelSpec> local = weights::LocalSpec(whole, share, formats);
    CHECK(local.ok(), "{}", local.error().message);
    found->ranks.push_back(rank);
    found->bytes.push_back(weights::PackedSizeBytes(*local, formats, share));
  }
  std::ranges::sort(by_role, {}, &RoleWeights::role);
  return by_role;
}

std::string Words(const std::vector<RoleWeights>& roles) {
  std::vector<std::string> words;
  for (const RoleWeights& role : roles) {
    const auto [least, most] = std::ranges::minmax(role.bytes);
    const std::string bytes = least == most
                                  ? FormatBytes(most)
                                  : fmt::format("{} to {}", FormatBytes(least), FormatBytes(most));
    words.push_back(fmt::format("{} on {} {} ({})", bytes,
                                role.ranks.size() == 1 ? "rank" : "each of ranks",
                                fmt::join(role.ranks, ", "), role.role));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace convene::engine
