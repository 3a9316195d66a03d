// Whether costs of steps are worth anything: where other programs had the cores while they were
// measured, tasks that had no part in them are missed by far. It says nothing of single
// predictions, which have intervals.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cost/step_costs.h"

namespace convene::cost {

// Costs of kinds that make most of a step, on a machine that is left alone, miss half of the tasks
// that were held out by 2 to 17 % (docs/results/predictions.md); of disturbed measurements it is 30
// % and more.
inline constexpr double kMostMedianError = 0.25;

struct DoubtfulKind {
  schedule::TaskKind kind = schedule::TaskKind::kExperts;
  double median_error = 0;
};

// Of attention, experts, dense blocks and the head the one with the largest error, if it is beyond
// kMostMedianError. Tasks of microseconds and exchanges of some bytes err by as much wherever they
// are measured, and do not count.
std::optional<DoubtfulKind> MostDoubtfulKind(const StepCosts& costs);

// For people who would trust predictions by them, without a full stop. Empty: they may.
std::string WordsOfDoubt(std::span<const StepCosts> measured);

// The same of a rank whose control group allows it `quota` cores. Measured tasks are short and have
// waits between them, in which a quota fills up again; tasks of a large model are long, and soon
// have the quota's share alone (docs/results/disaggregated.md). Empty: its threads have all they
// can use.
std::string WordsOfQuota(int rank, int num_threads, std::optional<double> quota);

}  // namespace convene::cost
