#include "engine/fewer_ranks.h"

#include "base/check.h"
#include "comm/first_ranks.h"
#include "engine/announce_load.h"

namespace convene::engine {

LocalRank LocalRankAmongFirst(int num_started, int num_ranks) {
  LocalRank local = LocalRankFromLauncher();
  if (local.count == num_started) local.count = num_ranks;
  return local;
}

FewerRanks::FewerRanks(comm::Group& all, int num_ranks) {
  CHECK(all.rank() == 0 && num_ranks < all.size());
  if (num_ranks == 1) return;  // the others wait as they are
  AnnounceFewer(all, num_ranks);
  group_ = comm::FirstRanks(all, num_ranks);
}

FewerRanks::~FewerRanks() {
  if (group_ != nullptr) Dismiss(*group_);
}

}  // namespace convene::engine
