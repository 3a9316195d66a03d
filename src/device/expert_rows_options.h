// What ExpertRows (expert_rows.h) and its parts are made for: which ranks there are, and how large
// their layers' rows may be.
#pragma once

#include <cstdint>

#include "hardware/thread_pool.h"
#include "strategy/role.h"
#include "strategy/step.h"

namespace convene::device {

struct ExpertRowsOptions {
  strategy::Roles roles = {};
  strategy::Pipeline pipeline = {};
  int rank = 0;
  int64_t dispatch_row_bytes = 0;
  int64_t return_row_bytes = 0;
  // Above 0: as the padded baseline of papers has it (one chunk only). Each expert takes capacity
  // = factor * own tokens * top_k / experts rows from each rank, which are sent, computed and
  // returned whether or not there are so many; more than that are taken, too.
  double capacity_factor = 0;
  // Most own rows of any rank, the same with padding, and (row, expert) pairs of theirs that one
  // rank gets; of any layer, for the sizes of buffers.
  int64_t most_rows = 0;
  int64_t most_padded_rows = 0;
  int64_t most_pairs = 0;
  // Shares the grouping of many pairs, and is free where Begin and Select are called; null: the
  // caller does all of it.
  hardware::ThreadPool* pool = nullptr;
};

}  // namespace convene::device
