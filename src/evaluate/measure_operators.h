// Measures operators that are no tasks of steps, but that loads, paging and generating need: copies
// and writes of memory, reads of the disk by size and depth of requests, messages between two
// ranks, and sampling. Each gets a model by its errors at held-out points
// (cost/fit_operator_model.h). What tasks of steps cost is measure_steps.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "comm/group.h"
#include "cost/operator_model.h"
#include "hardware/thread_pool.h"

namespace convene::evaluate {

struct MeasureOperatorsOptions {
  double budget_s = 1;               // for each group of operators
  std::string disk_directory = {};   // an existing one; empty: the disk is not measured
  double read_bytes_per_second = 0;  // of memory, by all threads
  double disk_bytes_per_second = 0;  // 0: the disk is not measured
  uint64_t last_level_cache_bytes = 0;
};

using OperatorModels = std::map<std::string, cost::OperatorModel>;

// On rank 0 alone, while others wait: "memory copy" and "memory write" (features: threads, bytes,
// bytes of a piece), "disk read" (bytes of a request, requests in flight; seconds of a request),
// "sample greedily" and "sample" (words of the vocabulary). What cannot be measured here is left
// out with a note. Errors: no memory.
Result<OperatorModels> MeasureOperators(hardware::ThreadPool& pool,
                                        const MeasureOperatorsOptions& options);

// *Collective*; the model is rank 0's: "message between two ranks" (bytes), of ranks 0 and 1, one
// way. Precondition: at least two ranks.
Result<OperatorModels> MeasureMessages(comm::Group& group, double budget_s);

}  // namespace convene::evaluate
