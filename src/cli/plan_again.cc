#include "cli/plan_again.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <utility>

#include "base/plain_number.h"
#include "cli/asked_question.h"
#include "evaluate/machine_profile_file.h"
#include "hardware/profile.h"
#include "planner/plan_search.h"

namespace convene::cli {

Result<DefaultPlan> PlanAgain(const ModelOptions& options, const model::ModelSpec& spec,
                              const plan::Plan& in_force, const planner::RankSetup& setup,
                              const planner::Workload& workload) {
  if (options.load.formats.activations) {
    return Error{"costs are known of the activations that go with the weights by default"};
  }
  if (in_force.layout.disaggregates || in_force.decode) {
    return Error{
        "only plans whose ranks and phases all divide the experts alike are planned again"};
  }
  Result<cost::MachineProfile> profile = evaluate::LoadMachineProfile(hardware::ProfilePath());
  if (!profile) return profile.error();
  const std::unique_ptr<AskedQuestion> asked = AskQuestion(options, spec, setup.num_ranks);
  if (!asked) return Error{"the cores and the memory that are here could not be read"};
  asked->profile = *std::move(profile);
  asked->workload = workload;
  planner::PlanQuestion& question = asked->question;
  plan::Plan present = in_force;
  if (present.wire == plan::Wire::kAuto) present.wire = plan::Wire::kF32;
  // Steps are as long as they are now.
  asked->setting.step_tokens =
      in_force.step_tokens_for(workload.batch, options.load.max_step_tokens);
  question.int8_kv = setup.int8_kv;
  engine::AnswerPlanQuestion(asked->setting, question);
  question.formats = {setup.weights};
  question.constraints = {.num_ranks = setup.num_ranks,
                          .num_threads = setup.num_threads,
                          .layout = in_force.layout,
                          .micro_batches = in_force.pipeline.micro_batches,
                          .wire = present.wire,
                          .keeps_step_tokens = true};
  question.present = plan::Plan{.layout = present.layout,
                                .pipeline = present.pipeline,
                                .cut_from_tokens = present.cut_from_tokens,
                                .wire = present.wire};
  question.passes_off = {"hybrid", "wires"};  // divisions and formats stay
  // From how many tokens on steps are cut does, too.
  if (present.cut_from_tokens == 0) question.passes_off.emplace_back("whole_decode");
  // Weights and cache are there.
  question.memory_per_rank = [](int) { return std::numeric_limits<uint64_t>::max(); };
  planner::PlanSearch search(question);
  Result<planner::PlanAnswer> answer = SearchPlan(search);
  if (!answer) return answer.error();
  const planner::Candidate& chosen = answer->candidates[answer->chosen];
  DefaultPlan again{.plan = in_force, .words = {}};
  again.plan.pipeline = chosen.plan.pipeline;
  // Steps that are whole are so from any number of tokens on.
  const strategy::Pipeline& next = again.plan.pipeline;
  const bool is_whole = next.chunks == 1 && next.micro_batches == 1;
  const bool may_change = next.overlap == in_force.pipeline.overlap &&
                          next.micro_batches == in_force.pipeline.micro_batches &&
                          (is_whole || chosen.plan.cut_from_tokens == in_force.cut_from_tokens);
  if (!may_change || again.plan == in_force) {
    return Error{answer->why_chosen.empty() ? "it is the best of those that compute the same"
                                            : answer->why_chosen};
  }
  again.words = fmt::format(
      "plan: {}, predicted {} tokens/s with prompts of {:.0f} tokens, answers of {:.0f} and {} "
      "sequences at a time; it computes the same as the plan before",
      Describe(chosen), PlainNumber(chosen.figures->throughput), workload.mean_prompt_tokens(),
      workload.mean_gen_tokens(), workload.batch);
  again.report = ReportOf(options, search, *answer, asked->profile);
  return again;
}

}  // namespace convene::cli
