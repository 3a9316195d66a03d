// How much a step has for its groups of ranks, in the two numbers that its degrees follow from
// where these are chosen for each step.
#pragma once

#include <cstdint>
#include <vector>

namespace convene::strategy {

struct StepLoad {
  int64_t rows = 0;  // of the group with the most
  int64_t keys = 0;  // likewise, the keys that all its rows see, windows apart

  bool operator==(const StepLoad&) const = default;
};

// Counts it, sequence by sequence.
class StepLoadCounter {
 public:
  explicit StepLoadCounter(int num_groups) : groups_(static_cast<size_t>(num_groups)) {}

  void Add(int group, int64_t first_position, int64_t num_tokens) {
    StepLoad& load = groups_.at(static_cast<size_t>(group));
    load.rows += num_tokens;
    load.keys += num_tokens * first_position + num_tokens * (num_tokens + 1) / 2;
    most_.rows = most_.rows > load.rows ? most_.rows : load.rows;
    most_.keys = most_.keys > load.keys ? most_.keys : load.keys;
  }
  const StepLoad& most() const { return most_; }

 private:
  std::vector<StepLoad> groups_;
  StepLoad most_;
};

}  // namespace convene::strategy
