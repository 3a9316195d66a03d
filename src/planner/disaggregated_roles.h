// Which ranks take attention and which the experts, where they may be unlike: a rank whose memory
// is fast, a slow one, one with few cores. For every division the step is solved
// (disaggregated_solver.h), and the fastest is taken. It knows no plan and no search.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/task_cost.h"
#include "planner/disaggregated_lines.h"
#include "planner/disaggregated_solver.h"

namespace convene::planner {

// One rank, beside what prices stand on.
struct RankTraits {
  cost::MachineState machine = {};  // how slow its memory and its cores are
  double memory_bytes = 0;          // 0: enough for whatever role

  bool operator==(const RankTraits& other) const {
    return machine == other.machine && memory_bytes == other.memory_bytes;
  }
};

// What roles take of memory.
struct RoleMemory {
  double attention_bytes = 0;  // of each rank with attention, whatever its sequences
  double sequence_bytes = 0;   // besides, of each sequence: cache and activations
  double expert_bytes = 0;     // of one expert of all layers
};

struct RolesQuestion {
  const model::ModelSpec& spec;
  strategy::ElementBytes bytes = {};
  std::vector<cost::ExpertShares> shares = {};         // as LinesQuestion's
  std::vector<strategy::SequenceRows> sequences = {};  // of the step, of all ranks together
  std::vector<RankTraits> ranks = {};                  // at least two
  RoleMemory memory = {};
  // Prices on ranks that are all as slow as that.
  std::function<Result<std::unique_ptr<StepPricer>>(const cost::MachineState&)> pricer = {};
  int most_micro_batches = strategy::kMostMicroBatches;
  int most_chunks = strategy::kMostChunks;
};

struct RolesChoice {
  std::vector<int> attention = {};  // ranks, in order; the rest are `experts`
  std::vector<int> experts = {};
  // By expert rank its share of the experts, as a layout has them; none: all alike.
  std::vector<int> expert_weights = {};
  DisaggregatedLines lines = {};
  DisaggregatedChoice step = {};

  double seconds() const { return step.seconds; }
};

// The best division first; ranks that are alike are not told apart, so that of these the first ones
// take attention. What a division cannot have (memory, more ranks than experts) is left out. Of
// unlike attention ranks, which have as many sequences each, the slowest counts; unlike expert
// ranks get experts by their rates. Errors: fewer than two ranks; no division that fits memory,
// with what is missing; those of the pricer.
Result<std::vector<RolesChoice>> RankRoles(const RolesQuestion& question);

// The fastest of those in which ranks of either group are treated as if all were alike: the first
// ranks take attention, and experts are divided evenly.
Result<RolesChoice> BestEqualRoles(const RolesQuestion& question);

// "attention on rank 2; experts on ranks 0, 1 as 3:1"
std::string Words(const RolesChoice& choice);

}  // namespace convene::planner
