#include "cli/plan_changes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/packed_matrix.h"
#include "runtime/formats.h"

namespace convene::cli {
namespace {

// Of plans that the search makes: integer weights have int8 activations there.
bool HasInt8Activations(std::string_view weights) {
  const auto format = kernels::WeightFormatFromName(weights);
  return format && runtime::DefaultFormats(*format).activations == kernels::ActivationFormat::kInt8;
}

// By how much logits of seven small models change in the median, of their norm
// (docs/results/fp8_sums.md). A small error of a row turns more roundings of int8 activations than
// of bf16 ones.
std::string_view ChangeByWire(plan::Wire wire, bool is_int8) {
  switch (wire) {
    case plan::Wire::kBf16:
      return is_int8 ? "0.8 to 1.2 %" : "0.2 to 0.4 %";
    case plan::Wire::kFp8:
      return is_int8 ? "0.8 to 1.2 %" : "0.7 to 2.5 %";
    case plan::Wire::kFp8Both:
      return is_int8 ? "1.1 to 2.4 %" : "0.9 to 3.2 %";
    default:
      return "";
  }
}

std::string WireChange(plan::Wire wire, bool is_int8) {
  std::string text = fmt::format("rows between ranks are rounded to {}", plan::Name(wire));
  if (is_int8 && wire == plan::Wire::kFp8) {
    text += " (with int8 activations the same as bf16: rows are dispatched as they are)";
  } else if (is_int8) {
    text += " (but for those that are dispatched, as int8 activations)";
  }
  const std::string_view by = ChangeByWire(wire, is_int8);
  return by.empty() ? text : fmt::format("{}, which changes logits by {} of their norm", text, by);
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
    changes.push_back(WireChange(plan.wire, HasInt8Activations(candidate.setup.weights)));
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
