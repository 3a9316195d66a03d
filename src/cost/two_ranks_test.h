// A small schedule for tests of costs.
#pragma once

#include "cost/sizes.h"
#include "schedule/schedule.h"

namespace convene::cost {

// On each of two ranks experts, and an exchange of 500 kB each beside them or behind them.
inline schedule::Schedule TwoRanks(bool overlaps) {
  schedule::Schedule schedule{.num_ranks = 2};
  for (int rank = 0; rank < 2; ++rank) {
    const auto experts = static_cast<schedule::TaskId>(schedule.tasks.size());
    schedule.tasks.push_back(
        {.kind = schedule::TaskKind::kExperts,
         .lane = {rank, schedule::LaneKind::kCompute},
         .layer = 0,
         .work = {.flops = schedule::Constant(1), .memory_bytes = schedule::Constant(4e6)}});
    schedule::Task exchange{.kind = schedule::TaskKind::kDispatch,
                            .lane = {rank, schedule::LaneKind::kSend},
                            .layer = 0,
                            .chunk = overlaps ? 1 : -1,
                            .collective = 0,
                            .work = {.link_bytes = schedule::Constant(5e5)}};
    if (!overlaps) exchange.after = {experts};
    schedule.tasks.push_back(exchange);
  }
  return schedule;
}

inline double NothingSized(const schedule::Size&) { return 0; }

}  // namespace convene::cost
