#include "engine/request_batches.h"

#include <algorithm>
#include <map>

#include "strategy/layout.h"

namespace convene::engine {
namespace {

// That its token sees.
int64_t TokensSeen(const ScheduledTokens& scheduled) {
  return int64_t{1} * scheduled.sequence->next_position() + std::ssize(scheduled.sequence->input);
}

struct MicroBatch {
  std::vector<ScheduledTokens> sequences;
  size_t most = 0;  // that it has when it is full
  int64_t tokens = 0;
};

// Of one group.
std::vector<ScheduledTokens> Balanced(std::vector<ScheduledTokens> sequences, int count) {
  std::vector<MicroBatch> micro_batches(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    micro_batches[static_cast<size_t>(i)].most = static_cast<size_t>(
        strategy::PartOf(static_cast<int>(std::ssize(sequences)), i, count).size);
  }
  std::ranges::stable_sort(sequences, std::ranges::greater(), TokensSeen);
  for (const ScheduledTokens& sequence : sequences) {
    MicroBatch* fewest = nullptr;
    for (MicroBatch& one : micro_batches) {
      if (one.sequences.size() == one.most) continue;
      if (fewest == nullptr || one.tokens < fewest->tokens) fewest = &one;
    }
    fewest->sequences.push_back(sequence);
    fewest->tokens += TokensSeen(sequence);
  }
  std::vector<ScheduledTokens> ordered;
  for (const MicroBatch& one : micro_batches) {
    ordered.insert(ordered.end(), one.sequences.begin(), one.sequences.end());
  }
  return ordered;
}

}  // namespace

void BalanceMicroBatches(int num_micro_batches, std::vector<ScheduledTokens>* step) {
  const auto has_one = [](const ScheduledTokens& scheduled) { return scheduled.num_tokens == 1; };
  if (num_micro_batches < 2 || !std::ranges::all_of(*step, has_one)) return;
  std::map<int, std::vector<ScheduledTokens>> groups;
  for (const ScheduledTokens& scheduled : *step) {
    groups[scheduled.sequence->group].push_back(scheduled);
  }
  step->clear();
  for (auto& [group, sequences] : groups) {
    const std::vector<ScheduledTokens> ordered = Balanced(std::move(sequences), num_micro_batches);
    step->insert(step->end(), ordered.begin(), ordered.end());
  }
}

}  // namespace convene::engine
