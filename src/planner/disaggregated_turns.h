// The pass that searches turns of plans with attention and experts on different ranks: numbers of
// micro-batches and chunks, order and PPPipe, from what the pass before it proposed by lines
// (disaggregated_pass.h). It looks at no other layouts.
#pragma once

#include <optional>

#include "planner/plan_search.h"

namespace convene::planner {

// Of all plans of the search. Unset: the search's to decide.
struct WantedTurns {
  std::optional<int> micro_batches = {};
  std::optional<int> chunks = {};
  std::optional<plan::DisaggregatedStrategy> strategy = {};
  std::optional<strategy::AttentionOrder> order = {};

  // Whether steps may differ: lines are of the strategy fine, and solve for all the rest.
  bool allow_lines() const;
  bool Has(const strategy::Pipeline& pipeline) const;
  // The next to it that is wanted.
  strategy::Pipeline Adapt(strategy::Pipeline pipeline) const;
};
WantedTurns WantedTurnsOf(const PlanSearch& search);

// Adds the candidate with its price, or with the reason why it has none. The same is not added
// twice.
void AddPriced(PlanSearch& search, Candidate candidate);

// From the best turns of each layout on, one of the numbers after the other is varied as long as
// the price, of the step's own schedule, falls. Lines are within a tenth of the schedule, and what
// they say is best is up to an eighth slower than the best of all by price. Of the layouts that are
// fastest as proposed; the others say why not.
void RefineTurns(PlanSearch& search);

}  // namespace convene::planner
