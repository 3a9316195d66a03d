#include "cost/exchange_levels.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "cost/import_tables.h"

namespace convene::cost {

using schedule::TaskId;

ExchangeLevels::ExchangeLevels(const std::vector<LinkLevel>& levels, int num_ranks)
    : levels_(levels), num_ranks_(num_ranks) {
  CHECK(!levels.empty() && levels.back().num_ranks == 0, "no level joins all ranks");
  first_levels_.push_back(0);
  const int host = LevelOfHost(levels);
  for (int level = 1; level <= host; ++level) {
    if (levels[level].num_ranks == 0 || levels[level].shared_by != LinkSharing::kNobody) break;
    first_levels_.push_back(level);
  }
}

int ExchangeLevels::BlockOf(int rank, int level) const {
  if (level < 0) return rank;
  return levels_[level].num_ranks == 0 ? 0 : rank / levels_[level].num_ranks;
}

int ExchangeLevels::LevelOf(int a, int b, int first_level) const {
  int level = first_level;
  while (BlockOf(a, level) != BlockOf(b, level)) ++level;
  return level;
}

void ExchangeLevels::AddResources(std::vector<Resource>& resources) {
  places_.assign(levels_.size(), std::vector<Places>(num_ranks_));
  first_resource_ = static_cast<int32_t>(resources.size());
  first_of_level_.clear();
  const auto add = [&](std::string name, double rate) {
    resources.push_back({std::move(name), ResourceKind::kLink, ConstantRate(rate)});
    return static_cast<int32_t>(resources.size()) - 1;
  };
  for (int index = 0; index < num_levels(); ++index) {
    const LinkLevel& level = levels_[index];
    first_of_level_.push_back(static_cast<int32_t>(resources.size()) - first_resource_);
    std::unordered_map<int, Places> of_sharers;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const int sharer = level.shared_by == LinkSharing::kNobody ? rank
                         : level.shared_by == LinkSharing::kHost ? BlockOf(rank, index - 1)
                                                                 : BlockOf(rank, index);
      const auto [found, is_new] = of_sharers.try_emplace(sharer);
      if (is_new && level.shared_by == LinkSharing::kMedium) {
        found->second.out = found->second.in =
            add(fmt::format("{} {}", level.name, sharer), level.bytes_per_second);
      } else if (is_new) {
        const char* who = level.shared_by == LinkSharing::kNobody ? "r" : "host ";
        found->second.out =
            add(fmt::format("{}{} {} out", who, sharer, level.name), level.bytes_per_second);
        found->second.in =
            add(fmt::format("{}{} {} in", who, sharer, level.name), level.bytes_per_second);
      }
      places_[index][rank] = found->second;
    }
  }
  num_resources_ = static_cast<int32_t>(resources.size()) - first_resource_;
}

std::vector<ExchangeLevels::LevelLoads> ExchangeLevels::LoadsOf(const schedule::Schedule& schedule,
                                                                std::span<const TaskId> tasks,
                                                                const Sizes& sizes,
                                                                int first_level) const {
  const size_t num_levels = levels_.size();
  const auto first = static_cast<size_t>(first_level);
  const auto num_others = static_cast<double>(tasks.size()) - 1;
  // By level and block: ranks of the exchange, and bytes that go evenly to all others.
  struct Block {
    int ranks = 0;
    double even = 0;
  };
  std::vector<std::vector<Block>> blocks(num_levels);
  for (size_t level = first; level < num_levels; ++level) {
    blocks[level].resize(BlockOf(num_ranks_ - 1, static_cast<int>(level)) + 1);
  }
  std::vector<double> even(tasks.size());
  std::vector<double> bytes(num_resources_);  // by resource; each is of one level
  for (size_t i = 0; i < tasks.size(); ++i) {
    const schedule::Task& task = schedule.tasks[tasks[i]];
    const int from = task.lane.rank;
    for (const schedule::Term& term : task.work.link_bytes) {
      const double value =
          term.size.kind == schedule::SizeKind::kOne ? term.factor : term.factor * sizes(term.size);
      if (term.size.to < 0 || term.size.to == from) {
        even[i] += value;
        continue;
      }
      const int level = LevelOf(from, term.size.to, first_level);
      bytes[places_[level][from].out - first_resource_] += value;
      if (levels_[level].shared_by != LinkSharing::kMedium) {
        bytes[places_[level][term.size.to].in - first_resource_] += value;
      }
    }
    for (size_t level = first; level < num_levels; ++level) {
      Block& block = blocks[level][BlockOf(from, static_cast<int>(level))];
      ++block.ranks;
      block.even += even[i];
    }
  }
  for (size_t i = 0; i < tasks.size() && num_others > 0; ++i) {
    const int rank = schedule.tasks[tasks[i]].lane.rank;
    Block inner = {.ranks = 1, .even = even[i]};
    for (size_t level = first; level < num_levels; ++level) {
      const Block& block = blocks[level][BlockOf(rank, static_cast<int>(level))];
      const double sent = even[i] * (block.ranks - inner.ranks) / num_others;
      const double received = (block.even - inner.even) / num_others;
      if (sent > 0) bytes[places_[level][rank].out - first_resource_] += sent;
      if (received > 0 && levels_[level].shared_by != LinkSharing::kMedium) {
        bytes[places_[level][rank].in - first_resource_] += received;
      }
      inner = block;
    }
  }
  std::vector<LevelLoads> loads(num_levels);
  for (size_t level = 0; level < num_levels; ++level) {
    for (const Block& block : blocks[level]) {
      loads[level].num_ranks = std::max(loads[level].num_ranks, block.ranks);
    }
    const int32_t end = level + 1 < num_levels ? first_of_level_[level + 1] : num_resources_;
    for (int32_t i = first_of_level_[level]; i < end; ++i) {
      if (bytes[i] <= 0) continue;
      loads[level].loads.push_back({first_resource_ + i, bytes[i]});
      loads[level].most_bytes = std::max(loads[level].most_bytes, bytes[i]);
    }
  }
  return loads;
}

}  // namespace convene::cost
