// Steps with their times as one file: a Chrome trace (chrome://tracing, ui.perfetto.dev) that also
// holds the schedules, so that a Gantt chart or a report can be made of it later.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace convene::drawing {

// Of a task's work what costs are over (cost/task_parts.h), beside its sums.
struct TracedParts {
  double weight_bytes = 0;
  double groups = 0;
  double score_flops = 0;
  double cache_bytes = 0;

  bool operator==(const TracedParts&) const = default;
};

struct TracedStep {
  std::string name;  // "prefill, 512 tokens"
  double start = 0;  // seconds since the trace began
  schedule::Schedule schedule =
      {};  // its amounts of work are written where they are constants (WithAmounts)
  schedule::Timeline measured = {};  // of all tasks, or empty
  schedule::Timeline predicted = {};
  std::string predicted_by = {};  // what its costs are from, for people
  // By task: bytes to other ranks that were counted where they were sent; empty where nobody
  // counted.
  std::vector<int64_t> sent_bytes = {};
  std::vector<TracedParts> parts = {};  // by task; empty where nobody told them
  // Tokens of all ranks that chose each expert, by layer; empty where nobody counted.
  std::vector<std::vector<int64_t>> expert_tokens = {};
  // How fast the machine was beside it, by the reference kernels that profiles tell of, too; 0: not
  // known.
  double read_bytes_per_second = 0;
  double dot_operations_per_second = 0;

  bool has_speed() const { return read_bytes_per_second > 0 && dot_operations_per_second > 0; }
};

struct Trace {
  std::vector<TracedStep> steps;
  // How it ran, so that costs can be refined by it; empty and 0 where nobody told.
  std::string weights = {};  // the format
  bool int8_kv = false;      // keys and values were cached in int8
  int num_threads = 0;       // of a rank
  std::string run = {};      // "plan of model hash", as costs that learn from it name it
};

// {"traceEvents": [...], "otherData": {"convene_trace": 1, "steps": [...]}}: times are in the
// events, measured ones in process `rank`, predicted ones in process 1000 + rank, a lane being a
// thread; tasks are in otherData.steps[i].tasks[id], named by the events' args. Times are rounded
// to nanoseconds.
std::string TraceJson(const Trace& trace);

// Errors: not JSON, not such a trace, tasks that are not valid (Validate), events of tasks that are
// not there, more than 1,000 ranks of all steps without tasks.
Result<Trace> TraceFromJson(std::string_view text);

// The schedule with the values of its amounts instead of expressions.
schedule::Schedule WithAmounts(schedule::Schedule schedule,
                               const std::function<double(const schedule::Size&)>& value_of);

}  // namespace convene::drawing
