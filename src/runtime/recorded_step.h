// A step as it was on all ranks, for those who look at steps afterwards. How it comes together is
// step_recorder.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/timeline.h"
#include "strategy/role.h"

namespace convene::runtime {

struct RecordedStep {
  // Steps of one kind have the same object: who keeps it can tell kinds apart by its address.
  std::shared_ptr<const schedule::Schedule> schedule = {};
  schedule::Timeline timeline = {};  // of the tasks of all ranks
  double start = 0;                  // seconds on rank 0's monotonic clock
  // Those that the schedule's work names.
  std::vector<std::pair<schedule::Size, double>> sizes = {};
  // Tokens of all ranks that chose each expert, by layer of the decoder.
  std::vector<std::vector<int64_t>> expert_tokens = {};
  // By task: what it sent to other ranks, as the group counted it.
  std::vector<int64_t> sent_bytes = {};
  // What ranks sent each other in the steps between the last one that was recorded and this one.
  int64_t sent_before_bytes = 0;
  bool encoder = false;
  // Set: no step, but the experts' move to their division in this phase.
  std::optional<strategy::Phase> changes_to = {};
  int64_t num_tokens = 0;  // of all groups, as are the sequences
  int num_sequences = 0;
};

}  // namespace convene::runtime
