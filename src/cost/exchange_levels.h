// What an exchange asks of the links of each level: those within a host, those between hosts, with
// whoever shares them. How far the rates of links are reached is the caller's to say.
#pragma once

#include <span>
#include <vector>

#include "cost/machine_profile.h"
#include "cost/prices.h"
#include "cost/sizes.h"
#include "schedule/schedule.h"

namespace convene::cost {

class ExchangeLevels {
 public:
  // `levels` from within a host outwards; the last one joins all ranks. Keeps a reference.
  ExchangeLevels(const std::vector<LinkLevel>& levels, int num_ranks);

  // The innermost level that joins two ranks, of those from `first_level` on.
  int LevelOf(int a, int b, int first_level = 0) const;
  int num_levels() const { return static_cast<int>(levels_.size()); }
  const LinkLevel& level(int index) const { return levels_[index]; }

  // One for each direction of each link, and for whatever ranks share; the rate is bytes per
  // second. Places of resources from here on are behind those that are there.
  void AddResources(std::vector<Resource>& resources);

  struct Load {
    int32_t resource = 0;
    double bytes = 0;
  };
  // Of one level: what each of its links has to carry, and the most that one has.
  struct LevelLoads {
    std::vector<Load> loads = {};
    double most_bytes = 0;
    int num_ranks = 0;  // most ranks of the exchange that the level joins
  };
  // By level, of one exchange. Bytes whose receiver is not named go evenly to all other ranks of
  // it. Levels within `first_level` carry nothing: what ranks that they join send to each other
  // takes that one.
  std::vector<LevelLoads> LoadsOf(const schedule::Schedule& schedule,
                                  std::span<const schedule::TaskId> tasks, const Sizes& sizes,
                                  int first_level = 0) const;

  // Levels at which the ways of an exchange may begin, from the innermost outwards: a link within
  // one at which each rank has a port of its own need not be taken, as that of a pair of GPUs which
  // are both on PCI Express. Ports that ranks of a block share are reached through the block's own
  // links, and so are those between hosts.
  const std::vector<int>& first_levels() const { return first_levels_; }

 private:
  struct Places {
    int32_t out = 0;
    int32_t in = 0;
  };
  // The number of the block of ranks that a level joins, to which a rank belongs; of level -1: of
  // ranks by themselves.
  int BlockOf(int rank, int level) const;

  const std::vector<LinkLevel>& levels_;
  int num_ranks_;
  std::vector<std::vector<Places>> places_;  // by level and rank
  int32_t first_resource_ = 0;
  int32_t num_resources_ = 0;
  std::vector<int32_t> first_of_level_;  // by level: its first resource, counted from the first one
  std::vector<int> first_levels_;
};

}  // namespace convene::cost
