#include "planner/changes_pass.h"

#include <algorithm>
#include <string>
#include <vector>

#include "planner/asked_plans.h"

namespace convene::planner {
namespace {

// The first format of which a plan fits that may be chosen but for its format. Where none does with
// all experts in memory, it is the last one that is read from a disk; where nothing may be chosen,
// the same of what might, were it allowed. Empty: nothing fits so far.
std::string FindFirstFormat(PlanSearch& search) {
  if (!search.first_format().empty()) return search.first_format();
  const std::vector<std::string>& formats = search.question().formats;
  for (const bool must_be_allowed : {true, false}) {
    const auto has_plan = [&](const std::string& format, bool is_paged) {
      return std::ranges::any_of(search.candidates(), [&](const Candidate& one) {
        return one.rejected_by.empty() && (one.is_allowed() || !must_be_allowed) &&
               one.setup.weights == format && one.plan.experts_in_memory.has_value() == is_paged;
      });
    };
    const auto in_memory = std::ranges::find_if(
        formats, [&](const std::string& format) { return has_plan(format, /*is_paged=*/false); });
    const auto on_disk = std::find_if(
        formats.rbegin(), formats.rend(),
        [&](const std::string& format) { return has_plan(format, /*is_paged=*/true); });
    if (in_memory == formats.end() && on_disk == formats.rend()) continue;
    std::string found = in_memory != formats.end() ? *in_memory : *on_disk;
    if (must_be_allowed) search.UseFormat(found);
    return found;
  }
  return "";
}

}  // namespace

void MarkChanges(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const auto given = [&](bool allowed, bool is_constraint) { return allowed || is_constraint; };
  for (Candidate& candidate : search.candidates()) {
    candidate.needs.clear();
    const plan::Plan& plan = candidate.plan;
    const bool several = plan.layout.num_ranks() > 1;
    if (!question.allowed.layout && ChangesLayout(question, plan)) {
      candidate.needs.emplace_back("layout");
    }
    const bool rounds =
        plan::Rounds(plan.wire) || (plan.wire == plan::Wire::kAuto && !question.one_host);
    if (several && rounds && !given(question.allowed.wire, question.constraints.wire.has_value())) {
      candidate.needs.emplace_back("wire");
    }
    if (plan.loads_experts() && !question.allowed.transition) {
      candidate.needs.emplace_back("transition");
    }
  }
  const std::string first_format = FindFirstFormat(search);
  if (first_format.empty() || question.allowed.weights) return;
  for (Candidate& candidate : search.candidates()) {
    if (candidate.setup.weights != first_format) candidate.needs.emplace_back("weights");
  }
}

bool CutsNothing(const model::ModelSpec& spec, const strategy::Layout& layout) {
  if (layout.attention_tp > 1 || layout.expert_tp > 1) return false;
  const strategy::Roles roles = layout;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    for (int share = 0; share < roles.expert_split().num_shares(); ++share) {
      const strategy::Part part = roles.expert_split().experts(share, layer.moe->num_experts);
      const bool is_branch =
          part.size > 0 && (part.size & (part.size - 1)) == 0 && part.first % part.size == 0;
      const bool is_whole = part.size == layer.moe->num_experts;
      if (!is_branch && !is_whole) return false;
    }
  }
  return true;
}

bool KeepsLogits(const model::ModelSpec& spec, const plan::Plan& plan, bool one_host) {
  if (plan.layout.num_ranks() == 1) return true;
  const bool is_exact =
      plan.wire == plan::Wire::kF32 || (plan.wire == plan::Wire::kAuto && one_host);
  return is_exact && CutsNothing(spec, plan.layout) &&
         (!plan.decode || CutsNothing(spec, *plan.decode));
}

}  // namespace convene::planner
