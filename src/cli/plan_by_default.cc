#include "cli/plan_by_default.h"

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "base/environment.h"
#include "engine/plan_question.h"
#include "evaluate/machine_profile_file.h"
#include "hardware/memory_status.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "planner/plan_search.h"
#include "weights/packed_directory.h"

namespace convene::cli {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> FormatsOf(const ModelOptions& options) {
  if (weights::IsPackedDirectory(options.directory)) {
    const auto packed = weights::OpenPackedDirectory(options.directory);
    if (packed) return {std::string(kernels::Name(packed->formats.matrices))};
  }
  const engine::FormatWishes& wishes = options.load.formats;
  if (wishes.weights) return {std::string(kernels::Name(*wishes.weights))};
  return engine::AutomaticFormats();
}

planner::Constraints ConstraintsOf(const PlanOptions& options, const plan::Plan& resolved,
                                   int num_threads) {
  planner::Constraints constraints{.num_ranks = resolved.layout.num_ranks(),
                                   .num_threads = num_threads};
  if (options.layout) constraints.layout = resolved.layout;
  if (options.pipeline || options.no_overlap) constraints.pipeline = resolved.pipeline;
  if (options.micro_batches || options.no_overlap) {
    constraints.micro_batches = resolved.pipeline.micro_batches;
  }
  if (options.wire) constraints.wire = resolved.wire;
  return constraints;
}

}  // namespace

std::optional<DefaultPlan> PlanByDefault(const ModelOptions& options, const model::ModelSpec& spec,
                                         const plan::Plan& resolved) {
  const int num_ranks = resolved.layout.num_ranks();
  // Costs are those of the formats that go with weights by default, and of a decoder's steps.
  if (options.load.formats.activations || spec.has_encoder() || resolved.auto_pipeline) return {};
  const Result<cost::MachineProfile> profile =
      evaluate::LoadMachineProfile(hardware::ProfilePath());
  if (!profile) return {};
  const Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.load.num_threads);
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
  if (!cpus || !available) return {};
  planner::Workload workload = options.workload;
  workload.batch = options.load.max_sequences;
  const planner::MeasuredSource source(*profile);
  planner::PlanQuestion question{.spec = spec, .workload = workload, .source = source};
  question.num_ranks = num_ranks;
  question.formats = FormatsOf(options);
  question.one_host = LocalRankFromLauncher().count == num_ranks;
  question.constraints = ConstraintsOf(options.plan, resolved, static_cast<int>(std::ssize(*cpus)));
  question.present = plan::Plan{.layout = resolved.layout, .wire = plan::Wire::kF32};
  question.clock = Now;
  engine::AnswerPlanQuestion(
      {.memory_of_host = available->bytes * num_ranks / LocalRankFromLauncher().count,
       .step_tokens = options.load.max_step_tokens},
      question);
  const Result<planner::PlanAnswer> answer = SearchPlan(question);
  if (!answer) {
    return DefaultPlan{
        .plan = resolved,
        .words = fmt::format("plan: as without a profile, since {}", answer.error().message)};
  }
  const planner::Candidate& chosen = answer->candidates[answer->chosen];
  DefaultPlan found{.plan = chosen.plan, .words = {}};
  found.plan.gemm = resolved.gemm;
  found.plan.comm_budget = resolved.comm_budget;
  found.plan.host_threads = resolved.host_threads;
  if (question.one_host && !options.plan.wire) found.plan.wire = resolved.wire;
  found.words = fmt::format(
      "plan: {}, predicted {:.4g} tokens/s, the best of {} plans that compute "
      "what one rank would (--no-plan: as without a profile)",
      Describe(chosen), chosen.figures->throughput, answer->candidates.size());
  return found;
}

}  // namespace convene::cli
