#include "cost/doubtful_costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/units.h"

namespace convene::cost {
namespace {

using schedule::TaskKind;

constexpr TaskKind kMainKinds[] = {TaskKind::kAttention, TaskKind::kExperts, TaskKind::kShared,
                                   TaskKind::kDense, TaskKind::kHead};

}  // namespace

std::optional<DoubtfulKind> MostDoubtfulKind(const StepCosts& costs) {
  std::optional<DoubtfulKind> most;
  for (const TaskKind kind : kMainKinds) {
    const std::optional<HeldOut>& held_out = costs.held_out[static_cast<size_t>(kind)];
    if (!held_out || held_out->median_error <= kMostMedianError) continue;
    if (most && held_out->median_error <= most->median_error) continue;
    most = {.kind = kind, .median_error = held_out->median_error};
  }
  return most;
}

std::string WordsOfDoubt(std::span<const StepCosts> measured) {
  std::vector<std::string> doubts;
  for (const StepCosts& costs : measured) {
    const std::optional<DoubtfulKind> most = MostDoubtfulKind(costs);
    if (!most) continue;
    doubts.push_back(fmt::format("with weights in {} by {} ({})", costs.weights,
                                 FormatPercent(most->median_error), schedule::Name(most->kind)));
  }
  if (doubts.empty()) return "";
  return fmt::format(
      "predictions by these costs are hardly worth anything: tasks that were held out are missed "
      "{} in the median, where a quiet machine has less than {:.0f} %. Other programs had the "
      "cores "
      "meanwhile, it seems: measure again while nothing else runs",
      fmt::join(doubts, ", "), 100 * kMostMedianError);
}

std::string WordsOfQuota(int rank, int num_threads, std::optional<double> quota) {
  if (!quota || *quota >= num_threads) return "";
  return fmt::format(
      "rank {} has {} thread{} and may use {:.3g} of a core's time: what it computes right behind "
      "a wait runs at full speed, so that long steps are predicted to be shorter than they are",
      rank, num_threads, num_threads == 1 ? "" : "s", *quota);
}

}  // namespace convene::cost
