#include "planner/step_sizes_pass.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "planner/paged_plans.h"
#include "planner/plan_system.h"

namespace convene::planner {
namespace {

// Plans whose steps are varied besides the best of each system: those that could become the best by
// it. What larger steps gain is not known ahead.
constexpr size_t kMostVaried = 12;
// A gain that is worth twice the memory for rows.
constexpr double kLeastGainOfDoubling = 1.01;

// Of all prompts that run together, those of the group of ranks with the most; a step of more
// tokens is none of more.
double MostTokens(const PlanQuestion& question, const plan::Plan& plan) {
  const int num_groups = strategy::Roles(plan.layout).num_groups();
  const Workload& workload = question.workload;
  return std::ceil(static_cast<double>(workload.batch) / num_groups) *
         workload.mean_prompt_tokens();
}

std::vector<Candidate> ToVary(PlanSearch& search) {
  std::vector<Candidate> found;
  for (const Candidate& one : search.candidates()) {
    if (one.is_ranked() && !search.IsForComparison(one)) found.push_back(one);
  }
  // Allowed ones first, since only they can be chosen.
  std::ranges::stable_sort(found, {}, [](const Candidate& one) {
    return std::pair(!one.is_allowed(), one.figures->score);
  });
  std::array<bool, kNumPlanSystems> has_system = {};
  std::vector<Candidate> varied;
  for (const Candidate& one : found) {
    const bool is_best = !std::exchange(has_system[static_cast<size_t>(SystemOf(one))], true);
    if (is_best || varied.size() < kMostVaried) varied.push_back(one);
  }
  return varied;
}

// With steps of so many tokens. More rows leave less room for experts, where these lie on a disk.
std::vector<plan::Plan> WithSteps(const PlanQuestion& question, const Candidate& base, int tokens) {
  plan::Plan plan = base.plan;
  plan.step_tokens = tokens;
  if (!plan.experts_in_memory) return {std::move(plan)};
  const bool spills = plan.spilled_kv.has_value();
  plan.experts_in_memory.reset();
  plan.spilled_kv.reset();
  plan.sequences = 0;
  PagedPlans paged =
      PagedPlansOf(question, base.setup, plan, question.workload.batch, base.memory_limit);
  if (spills) return std::move(paged.spilled);
  if (!paged.experts) return {};
  return {*std::move(paged.experts)};
}

}  // namespace

void AddStepSizes(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const bool are_given = question.constraints.keeps_step_tokens;
  if (are_given || question.workload.arrival_rate > 0 || question.spec.has_encoder()) return;
  for (const Candidate& base : ToVary(search)) {
    const double most = MostTokens(question, base.plan);
    double best = base.figures->score;
    for (int tokens = base.plan.step_tokens_for(question.workload.batch, question.step_tokens);
         tokens < most && tokens * 2 <= plan::kMostStepTokens;) {
      tokens *= 2;
      bool is_better = false;
      for (plan::Plan& plan : WithSteps(question, base, tokens)) {
        Candidate varied{.setup = base.setup,
                         .plan = std::move(plan),
                         .memory_limit = base.memory_limit,
                         .needs = base.needs};
        Candidate* const added = search.Add(std::move(varied));
        if (added == nullptr) continue;
        search.Price(*added);
        if (!added->is_ranked()) continue;
        if (added->figures->score * kLeastGainOfDoubling > best) {
          search.Reject(*added,
                        "it gains less than 1 % by steps of twice as many tokens, whose rows "
                        "take memory");
          continue;
        }
        best = added->figures->score;
        is_better = true;
      }
      if (!is_better) break;
    }
  }
}

}  // namespace convene::planner
