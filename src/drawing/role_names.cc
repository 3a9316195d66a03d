#include "drawing/role_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace convene::drawing {

std::vector<std::string> RoleNames(const schedule::Schedule& schedule) {
  using enum schedule::TaskKind;
  const auto num_ranks = static_cast<size_t>(schedule.num_ranks);
  std::vector<uint8_t> attends(num_ranks, 0);
  std::vector<uint8_t> has_experts(num_ranks, 0);
  for (const schedule::Task& task : schedule.tasks) {
    const auto rank = static_cast<size_t>(task.lane.rank);
    if (task.kind == kAttention) attends[rank] = 1;
    if (task.kind == kExperts) has_experts[rank] = 1;
  }
  std::vector<std::string> names(num_ranks);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (attends[rank] == has_experts[rank]) return std::vector<std::string>(num_ranks);
    names[rank] = attends[rank] != 0 ? "attention" : "experts";
  }
  // Of steps without attention, or without experts, there is nothing to tell apart.
  const auto has_both_kinds =
      std::find(attends.begin(), attends.end(), 1) != attends.end() &&
      std::find(has_experts.begin(), has_experts.end(), 1) != has_experts.end();
  return has_both_kinds ? names : std::vector<std::string>(num_ranks);
}

std::string RankName(int rank, const std::string& role) {
  return role.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, role);
}

}  // namespace convene::drawing
