#include "bench/papers/hap_case.h"

#include <fmt/format.h>

namespace convene::papers {

bool IsTensorParallel(const planner::HybridCandidate& candidate, int num_ranks) {
  return candidate.prefill.attention_tp == num_ranks && candidate.prefill.expert_tp == num_ranks &&
         candidate.decode.expert_tp == num_ranks;
}

std::string ShortText(const planner::HybridCandidate& candidate) {
  const auto of = [](const strategy::Layout& layout) {
    return planner::ToText(planner::ExpertStrategy{layout.expert_ep, layout.expert_tp}).substr(8);
  };
  std::string text = planner::ToText(planner::AttentionStrategy{candidate.prefill.attention_tp,
                                                                candidate.prefill.attention_dp})
                         .substr(10);
  text += " / " + of(candidate.prefill);
  if (candidate.triple.prefill != candidate.triple.decode) {
    text += fmt::format(" > {} ({})", of(candidate.decode), candidate.transition_by);
  }
  return text;
}

bool IsExpertParallel(const planner::HybridCandidate& candidate, int num_ranks) {
  return candidate.prefill.attention_dp == num_ranks && candidate.prefill.expert_ep == num_ranks &&
         candidate.decode.expert_ep == num_ranks;
}

Result<planner::HybridAnswer> SearchAsHap(const model::ModelSpec& spec,
                                          const cost::MachineProfile& machine, int num_ranks,
                                          int batch, int prompt_tokens, int gen_tokens,
                                          int step_tokens) {
  planner::HybridQuestion question =
      AskHybrid(spec, machine, num_ranks, batch, prompt_tokens, gen_tokens);
  question.step_tokens = step_tokens / num_ranks;
  return planner::SearchHybrid(question);
}

}  // namespace convene::papers
