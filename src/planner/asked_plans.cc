#include "planner/asked_plans.h"

#include <bit>
#include <utility>

#include "planner/plan_search.h"

namespace convene::planner {

using strategy::Layout;

bool IsSearchedNumber(int num_ranks) {
  return num_ranks <= kFewRanks || std::has_single_bit(static_cast<unsigned>(num_ranks));
}

plan::Plan UsualPlan(const PlanQuestion& question, int num_ranks) {
  plan::Plan plan{.layout = plan::DefaultLayout(num_ranks)};
  if (num_ranks == 1) return plan;
  plan.wire = question.constraints.wire.value_or(plan::Wire::kF32);
  if (question.constraints.pipeline) plan.pipeline = *question.constraints.pipeline;
  plan.pipeline.micro_batches = question.constraints.micro_batches.value_or(1);
  return plan;
}

std::vector<Layout> LayoutsOf(int num_ranks, int num_layers) {
  std::vector<Layout> layouts = {plan::DefaultLayout(num_ranks)};
  for (int attention = 1; attention <= num_ranks; ++attention) {
    if (num_ranks % attention != 0) continue;
    for (int slices = 1; slices <= num_ranks; ++slices) {
      if (num_ranks % slices != 0) continue;
      const Layout layout{.attention_tp = attention,
                          .attention_dp = num_ranks / attention,
                          .expert_ep = num_ranks / slices,
                          .expert_tp = slices};
      if (layout != layouts.front()) layouts.push_back(layout);
    }
  }
  if (num_ranks > 1 && num_ranks <= num_layers) layouts.push_back({.stages = num_ranks});
  return layouts;
}

std::vector<plan::Plan> AskedPlans(const PlanQuestion& question, int num_ranks) {
  const Constraints& constraints = question.constraints;
  std::vector<plan::Plan> plans;
  for (const Layout& layout : constraints.layout
                                  ? std::vector{*constraints.layout}
                                  : LayoutsOf(num_ranks, question.spec.num_layers())) {
    plan::Plan plan = UsualPlan(question, num_ranks);
    plan.layout = layout;
    if (layout.num_ranks() != num_ranks) continue;
    if (constraints.decode_experts) {
      const Status parsed = plan::ParseDecodeExperts(*constraints.decode_experts, &plan);
      if (!parsed || !plan.changes_layout()) continue;
    }
    if (!plan::CheckLayout(plan)) continue;  // chunks or wires were asked for that it has not
    plans.push_back(std::move(plan));
  }
  return plans;
}

bool ChangesLayout(const PlanQuestion& question, const plan::Plan& plan) {
  if (question.constraints.layout || question.constraints.decode_experts) return false;
  plan::Plan exact = plan;
  exact.wire = plan::Wire::kF32;
  exact.phase_change.transition = plan::Transition::kReshard;
  return !KeepsLogits(question.spec, exact, question.one_host);
}

}  // namespace convene::planner
