#include "planner/step_turns.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "planner/disaggregated_solver.h"

namespace convene::planner {
namespace {

constexpr int kBitsOfClass = 3;
constexpr size_t kMostKnown = 4096;

}  // namespace

int64_t ClassOfSize(int64_t number) {
  CHECK(number >= 0, "{}", number);
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(number)));
  if (bits <= kBitsOfClass) return number;
  const int dropped = bits - kBitsOfClass;
  return number >> dropped << dropped;
}

DisaggregatedLines WithKeys(DisaggregatedLines lines, double keys_per_row) {
  lines.attention.per_row += keys_per_row * lines.attention_per_key;
  lines.attention_per_key = 0;
  return lines;
}

StepTurns::StepTurns(std::vector<plan::LaneLines> lines, strategy::Pipeline most)
    : lines_(std::move(lines)), most_(std::move(most)) {
  CHECK(!lines_.empty());
}

strategy::Pipeline StepTurns::For(const strategy::StepLoad& load) {
  CHECK(load.rows >= 1, "a step without rows");
  const std::pair known_as(ClassOfSize(load.rows), ClassOfSize(load.keys / load.rows));
  const auto found = known_.find(known_as);
  if (found != known_.end()) return found->second;
  if (known_.size() == kMostKnown) known_.clear();
  ++num_solved_;
  return known_.emplace(known_as, Solve(known_as.first, static_cast<double>(known_as.second)))
      .first->second;
}

const plan::LaneLines& LinesOf(std::span<const plan::LaneLines> lines, int64_t rows) {
  const auto last = lines.end() - 1;
  return *std::find_if(lines.begin(), last, [&](const plan::LaneLines& one) {
    return static_cast<double>(rows) <= one.most_rows;
  });
}

strategy::Pipeline StepTurns::Solve(int64_t rows, double keys_per_row) const {
  const DisaggregatedChoice choice =
      SolveStep({.lines = WithKeys(LinesOf(lines_, rows), keys_per_row),
                 .rows_per_sequence = 1,
                 .most_micro_batches = most_.micro_batches,
                 .most_chunks = most_.chunks},
                static_cast<double>(rows));
  return ToPipeline(choice.pipeline);
}

}  // namespace convene::planner
