// What of a task's work decides its time, whatever the task: products with weights, scores, passes
// over rows, and what is sent.
#pragma once

#include "cost/sizes.h"
#include "schedule/schedule.h"

namespace convene::cost {

struct TaskParts {
  double product_flops = 0;  // of rows with weights
  double weight_bytes = 0;   // that are read for them
  double groups = 0;         // of weights with rows of their own: experts; 1 otherwise
  double score_flops = 0;    // of queries with keys, and of what these weigh values with
  double cache_bytes = 0;    // of keys and values
  double row_bytes = 0;      // of passes over rows
  double link_bytes = 0;     // that the task's rank sends to other ranks

  // FLOPs for each byte of weights: 2 · rows of a weight / bytes of a weight.
  double product_intensity() const { return weight_bytes > 0 ? product_flops / weight_bytes : 0; }
  double score_intensity() const { return cache_bytes > 0 ? score_flops / cache_bytes : 0; }
};

// At sizes that are known, or expected.
TaskParts PartsOf(const schedule::Task& task, const Sizes& sizes);

}  // namespace convene::cost
