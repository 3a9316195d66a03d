#include "engine/step_plan.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "engine/scheduler.h"

namespace convene::engine {
namespace {

// What a group has in the step that is being filled.
struct Filled {
  int num_tokens = 0;
  int num_blocks = 0;

  bool HasRoom(int length, const StepLimits& limits) const {
    return num_tokens + length <= limits.max_step_tokens &&
           num_blocks + Scheduler::BlocksFor(length) <= limits.num_kv_blocks;
  }
};

// The steps of one group.
class GroupSteps {
 public:
  GroupSteps(int group, const StepLimits& limits) : group_(group), limits_(limits) {}

  int64_t total_tokens() const { return total_tokens_; }
  const std::vector<PlannedStep>& steps() const { return steps_; }

  void Add(int sequence_idx, int length) {
    if (steps_.empty()) steps_.emplace_back();
    if (!filled_.HasRoom(length, limits_)) {
      if (!steps_.back().empty()) steps_.emplace_back();
      filled_ = {};
    }
    for (int position = 0; position < length;) {
      const int count = std::min(length - position, limits_.max_step_tokens);
      steps_.back().push_back({.sequence_idx = sequence_idx,
                               .group = group_,
                               .first_position = position,
                               .num_tokens = count,
                               .first_block = filled_.num_blocks});
      filled_.num_tokens += count;
      position += count;
      if (position == length) break;
      steps_.emplace_back();
      filled_.num_tokens = 0;
    }
    filled_.num_blocks += Scheduler::BlocksFor(length);
    total_tokens_ += length;
  }

 private:
  int group_;
  const StepLimits& limits_;
  std::vector<PlannedStep> steps_;  // the last one is being filled
  Filled filled_;
  int64_t total_tokens_ = 0;
};

}  // namespace

std::vector<PlannedStep> PlanSteps(std::span<const int> lengths, const StepLimits& limits) {
  std::vector<GroupSteps> groups;
  for (int group = 0; group < limits.num_groups; ++group) groups.emplace_back(group, limits);
  for (int i = 0; i < std::ssize(lengths); ++i) {
    const int length = lengths[static_cast<size_t>(i)];
    if (length == 0) continue;
    std::ranges::min_element(groups, {}, &GroupSteps::total_tokens)->Add(i, length);
  }
  std::vector<PlannedStep> all;
  for (const GroupSteps& group : groups) {
    all.resize(std::max(all.size(), group.steps().size()));
    for (size_t i = 0; i < group.steps().size(); ++i) {
      all[i].insert(all[i].end(), group.steps()[i].begin(), group.steps()[i].end());
    }
  }
  return all;
}

std::vector<PlannedStep> PlanWholeSteps(std::span<const int> lengths, const StepLimits& limits) {
  std::vector<PlannedStep> steps;
  std::vector<Filled> groups(static_cast<size_t>(limits.num_groups));
  for (int i = 0; i < std::ssize(lengths); ++i) {
    const int length = lengths[static_cast<size_t>(i)];
    CHECK(Filled().HasRoom(length, limits), "{} tokens do not fit in a step", length);
    // Of the groups that have room the one with the fewest tokens.
    int best = -1;
    for (int group = 0; group < limits.num_groups; ++group) {
      const Filled& filled = groups[static_cast<size_t>(group)];
      if (!filled.HasRoom(length, limits)) continue;
      const bool is_better =
          best < 0 || filled.num_tokens < groups[static_cast<size_t>(best)].num_tokens;
      if (is_better) best = group;
    }
    if (best < 0 || steps.empty()) {
      steps.emplace_back();
      groups.assign(groups.size(), {});
      best = 0;
    }
    Filled& filled = groups[static_cast<size_t>(best)];
    steps.back().push_back(
        {.sequence_idx = i, .group = best, .num_tokens = length, .first_block = filled.num_blocks});
    filled.num_tokens += length;
    filled.num_blocks += Scheduler::BlocksFor(length);
  }
  return steps;
}

}  // namespace convene::engine
