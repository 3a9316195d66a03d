// What decides into how many chunks experts are best divided, measured on the ranks as they are:
// how fast products of experts run by the rows that each has, what exchanges cost while the rank
// waits for them and while it computes. What follows from it is planner/pipeline_degree.h.
#pragma once

#include "base/result.h"
#include "comm/group.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "runtime/formats.h"
#include "weights/weight_store.h"

namespace convene::runtime {

struct RankMeasurement {
  int cores = 1;
  double weight_bytes_per_second = 0;  // at which products of one row per expert read weights
  double flops_per_second = 0;         // of products with many rows per expert
  // The time that an expert takes beside that of its rows, as a number of rows that would take as
  // long. It is fitted so that time over rows is a line through the times measured for few and for
  // many rows.
  double rows_per_expert = 0;
  double exchange_seconds = 0;         // of an exchange of a few bytes that the rank waits for
  double exchange_seconds_beside = 0;  // of the same exchange while the rank computes
  // What this rank sends, receiving as much, while all ranks do the same.
  double link_bytes_per_second = 0;
  double link_core_seconds_per_byte = 0;  // by which computing ends later, per byte that is sent
};

// *Collective*, about half a second. `weights` are this rank's share of a model that has a layer of
// experts. Error: no memory to measure with, which is reserved in `ledger` meanwhile.
Result<RankMeasurement> MeasureRank(comm::Group& group, weights::WeightStore& weights,
                                    const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                    const Formats& formats, memory::Ledger& ledger);

}  // namespace convene::runtime
