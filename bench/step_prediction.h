// What a step is predicted to take, with all that a comparison by the prediction protocol needs
// (docs/results/predictions.md): its interval, and what it would take of a slower machine.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "cost/step_costs.h"
#include "planner/predict_step.h"

namespace convene::bench {

struct StepPrediction {
  double seconds = 0;
  cost::Interval interval;
  // Seconds that go with the time of the reference kernels: of memory, and of cores. A step on a
  // machine whose memory is a tenth slower takes a tenth of `memory_seconds` longer.
  double memory_seconds = 0;
  double compute_seconds = 0;
  double extrapolated_share = 0;   // at sizes beyond what was measured
  cost::ReferenceSpeed reference;  // when the costs were measured
  // By kind of task, of a rank on average, without waiting for others; a kind that takes none is
  // left out.
  std::map<std::string, double> seconds_of_kinds;
};

// Errors: those of planner::PredictStep.
Result<StepPrediction> PredictStepOfCosts(const planner::StepQuestion& question,
                                          const cost::StepCosts& costs);

// Members as bench/prediction_table.py reads them, in seconds, bytes and operations per second:
// predicted_s, low_s, high_s, memory_s, compute_s, extrapolated, read_bytes_per_s,
// dot_operations_per_s; and seconds_of_kinds.
nlohmann::ordered_json ToJson(const StepPrediction& prediction);

}  // namespace convene::bench
