// Work that takes fewer ranks than were started: the first ones do it, and the others idle until
// rank 0 dismisses all of them. What the first ones do is ranks.h.
#pragma once

#include <memory>

#include "base/environment.h"
#include "comm/group.h"

namespace convene::engine {

// This process among the first `num_ranks` of `num_started`: where all of them are on one host, its
// cores and its memory are divided among the first ones alone. On several hosts everyone keeps what
// the launcher gave it.
LocalRank LocalRankAmongFirst(int num_started, int num_ranks);

// On rank 0. While it lives, the ranks of `group()` follow; at its end they wait for `all` again.
class FewerRanks {
 public:
  // Tells the others. *Collective* with FollowRankZero. Keeps the reference. Precondition:
  // num_ranks < all.size().
  FewerRanks(comm::Group& all, int num_ranks);
  ~FewerRanks();
  FewerRanks(const FewerRanks&) = delete;
  FewerRanks& operator=(const FewerRanks&) = delete;

  comm::Group* group() { return group_.get(); }  // null: rank 0 works alone

 private:
  std::unique_ptr<comm::Group> group_;
};

}  // namespace convene::engine
