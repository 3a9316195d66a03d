#include "planner/routing_waits.h"

#include <algorithm>
#include <cmath>

#include "planner/drawn_sizes.h"
#include "planner/layer_shapes.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::planner {
namespace {

using schedule::Size;

constexpr int kDraws = 8;
// From so many visits of an expert on, next to no expert is left out in any routing.
constexpr double kMostVisits = 4;

// Of one layer.
Result<double> WaitOf(const StepQuestion& question, const cost::ExpertShares& shares, int top_k,
                      const StepPricer& pricer) {
  const schedule::Schedule schedule = strategy::BuildStep(question.spec, question.options);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const cost::ExpectedSizes expected = ExpectSizes(question);
  const auto seconds = [&](const cost::Sizes& sizes) -> Result<double> {
    const Result<SchedulePrices> priced = pricer.Price(question.spec, schedule, graph, sizes);
    if (!priced) return priced.error();
    return simulate::Simulate(schedule, graph, priced->prices).seconds();
  };
  const Result<double> even = seconds([&](const Size& size) { return expected.at(size); });
  if (!even) return even.error();
  double mean = 0;
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    const DrawnSizes drawn(expected, question.options.roles, shares, top_k, draw);
    const Result<double> uneven = seconds([&](const Size& size) { return drawn.at(size); });
    if (!uneven) return uneven.error();
    mean += *uneven / kDraws;
  }
  return std::max(0.0, mean - *even);
}

}  // namespace

Result<std::vector<double>> RoutingWaits(const StepQuestion& question, const StepPricer& pricer) {
  std::vector<double> waits(question.spec.layers.size(), 0);
  // Slices of all experts are alike on all ranks, whatever the routing.
  if (question.options.roles.expert_split().num_shares() == 1) return waits;
  double rows = 0;
  for (const auto& group : question.groups) {
    for (const strategy::SequenceRows& each : group) rows += static_cast<double>(each.num_tokens);
  }
  for (const LayerShape& shape : LayerShapesOf(question.spec, 1)) {
    const std::optional<model::MoeSpec>& moe = shape.spec.layers.front().moe;
    if (!moe) continue;
    if (rows * moe->top_k > kMostVisits * moe->num_experts) continue;
    StepQuestion of_layer{
        .spec = shape.spec, .options = question.options, .groups = question.groups};
    of_layer.options.pipeline = {};
    of_layer.options.prunes_last_layer = false;
    const auto entry = question.shares.size() > 1 ? static_cast<size_t>(shape.first) : 0;
    of_layer.shares = {question.shares.empty() ? cost::UniformShares(moe->num_experts, moe->top_k)
                                               : question.shares.at(entry)};
    const Result<double> wait = WaitOf(of_layer, of_layer.shares.front(), moe->top_k, pricer);
    if (!wait) return wait.error();
    for (size_t layer = 0; layer < waits.size(); ++layer) {
      if (AreAlike(question.spec.layers[layer], shape.spec.layers.front())) waits[layer] = *wait;
    }
  }
  return waits;
}

}  // namespace convene::planner
