// What the tasks of a layer take where attention and experts are on different ranks, as straight
// lines over rows (Pan et al., "FinDEP", 2025, section 4.1): numbers that a plan carries, so that
// all ranks divide each step in the way that is best for its size without asking each other. Where
// they come from, and what is made of them, is planner/.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/result.h"

namespace convene::plan {

// once + per_row * rows seconds, as Eqs. 7 to 11 of the paper have it. Neither is below zero.
struct Line {
  double once = 0;
  double per_row = 0;

  double At(double rows) const { return once + per_row * rows; }
  bool operator==(const Line&) const = default;
};

// Seconds of a layer's tasks over rows of ONE group of ranks with attention, all of which have as
// many (a group is one rank, unless heads are divided): of a micro-batch (attention, shared) or of
// a chunk (the others). Of unlike ranks, the slowest of each kind.
struct LaneLines {
  Line attention = {};  // with all that attention ranks compute besides the shared expert
  Line shared = {};     // zero: the layers have no shared expert
  double counts = 0;    // of a micro-batch, before its first dispatch
  Line dispatch = {};   // A2E
  Line experts = {};
  Line combine = {};   // E2A
  int num_layers = 1;  // with experts
  // Of attention besides, for each key that a row sees; 0: keys are counted into its rows.
  double attention_per_key = 0;
  // Of a group in a step, that the lines are of; the last ones of several are of larger steps, too.
  // 0, of one alone: any number.
  double most_rows = 0;

  bool has_shared() const { return shared != Line{}; }
  bool operator==(const LaneLines&) const = default;
};

// Lines of several sizes of steps, the smallest first.
nlohmann::ordered_json ToJson(const std::vector<LaneLines>& lines);
// Errors: members that are missing, not known or of the wrong kind, numbers below zero or not
// finite, sizes of steps that do not increase, or among several one of 0, more than kMostLaneLines.
inline constexpr int kMostLaneLines = 16;
Result<std::vector<LaneLines>> LaneLinesFromJson(const nlohmann::json& json);

}  // namespace convene::plan
