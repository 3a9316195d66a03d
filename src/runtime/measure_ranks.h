// What decides into how many chunks experts are best divided, measured on the ranks as they are:
// how fast products of experts run by the rows that each has, what exchanges cost while the rank
// waits for them and while it computes. What follows from it is planner/pipeline_degree.h.
#pragma once

#include "base/result.h"
#include "comm/group.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "runtime/formats.h"
#include "weights/weight_store.h"

namespace convene::runtime {

struct RankMeasurement {
  double weight_bytes_per_second = 0;  // read by products of one row per expert
  double flops_per_second = 0;         // of further rows, where there are many
  // What an expert takes besides its rows, as rows: together a line through the times of some and
  // of many rows.
  double rows_per_expert = 0;
  double exchange_seconds = 0;         // of next to nothing, waited for
  double exchange_seconds_beside = 0;  // the same while the rank computes
  // That this rank sends, and receives as much, while all do.
  double link_bytes_per_second = 0;
  double link_core_seconds_per_byte = 0;  // of those sent: how much later computing ends
};

// *Collective*, about half a second. `weights` are this rank's share of a model that has a layer of
// experts. Error: no memory to measure with.
Result<RankMeasurement> MeasureRank(comm::Group& group, weights::WeightStore& weights,
                                    const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                    const Formats& formats);

}  // namespace convene::runtime
