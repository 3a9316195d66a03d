#include "cli/plan_changes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace convene::cli {
namespace {

// By how much logits of seven small models change in the median, of their norm
// (docs/results/fp8_sums.md).
std::string_view ChangeByWire(plan::Wire wire) {
  switch (wire) {
    case plan::Wire::kBf16:
      return "0.2 to 0.4 %";
    case plan::Wire::kFp8:
      return "0.7 to 2.5 %";
    case plan::Wire::kFp8Both:
      return "0.9 to 3.2 %";
    default:
      return "";
  }
}

// Of a trained model of 8 million parameters (docs/results/quantisation.md, transition.md).
std::string_view PerplexityByWeights(std::string_view format) {
  if (format == "int4") return "1.6 %";
  if (format == "int8") return "0.06 %";
  return "";
}

}  // namespace

std::vector<std::string> ChangesOf(const planner::PlanQuestion& question,
                                   const planner::Candidate& candidate,
                                   std::string_view usual_format) {
  std::vector<std::string> changes;
  const plan::Plan& plan = candidate.plan;
  plan::Plan exact = plan;
  exact.wire = plan::Wire::kF32;
  if (!planner::KeepsLogits(question.spec, exact, question.one_host)) {
    changes.emplace_back(
        "it sums in another order, which changes logits by 0.1 to 0.3 % of their norm with bf16 "
        "weights and by about 2 % with integer ones");
  }
  if (plan::Rounds(plan.wire)) {
    std::string text = fmt::format("rows between ranks are rounded to {}", plan::Name(plan.wire));
    const std::string_view by = ChangeByWire(plan.wire);
    if (!by.empty()) text += fmt::format(", which changes logits by {} of their norm", by);
    changes.push_back(std::move(text));
  }
  const std::string& weights = candidate.setup.weights;
  if (weights != usual_format) {
    std::string text = fmt::format("weights are {} where {} would fit", weights, usual_format);
    const std::string_view by = PerplexityByWeights(weights);
    if (!by.empty()) {
      text += fmt::format(", with which perplexity of a small trained model is {} higher", by);
    }
    changes.push_back(std::move(text));
  }
  if (plan.loads_experts()) {
    changes.emplace_back(
        "experts that come to decode's division were int4 in between, with which perplexity of a "
        "small trained model is at most 0.5 % higher");
  }
  return changes;
}

std::string JoinedChangesOf(const planner::PlanQuestion& question,
                            const planner::Candidate& candidate, std::string_view usual_format) {
  return fmt::format("{}", fmt::join(ChangesOf(question, candidate, usual_format), "; "));
}

}  // namespace convene::cli
