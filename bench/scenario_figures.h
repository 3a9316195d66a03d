// What repeated steps of a plan amount to, beside those of others that took turns with them.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/recorded_step.h"

namespace convene::bench {

// Steps of one plan at one point, in the order of the rounds. Of `first` (the point's first plan)
// and `flat` (the same plan at the least skew) the same rounds: since the machine's speed changes
// from one to the next, ratios are those of a round, and then their median.
struct Repeated {
  const std::vector<runtime::RecordedStep>& steps;
  const std::vector<runtime::RecordedStep>& first;
  const std::vector<runtime::RecordedStep>& flat;
};

// Seconds: median_s, least_s, most_s; replayed_s: what the simulator makes of the times that the
// same plan's tasks took in the other rounds, which tests the simulator and predicts nothing;
// task_errors: of that, by kind. all_rounds and even_rounds (those in which the ranks took
// about the same time for the same work, their attention), each with medians: speedup over the
// first plan, of_flat (speed by that at the least skew), waiting_share (mean over ranks).
// not_computing_share: of all rounds. sections: by kind of task, mean_s, deviation_s and longest_s
// over ranks without waiting, and waiting_s.
nlohmann::ordered_json FiguresOf(const Repeated& repeated);

}  // namespace convene::bench
