#include "cli/plan_by_default.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/environment.h"
#include "base/units.h"
#include "engine/ask_for_costs.h"
#include "engine/choose_pipeline.h"
#include "engine/plan_question.h"
#include "evaluate/known_costs.h"
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

// The first format that fits memory as `resolved` divides the model; none does: the last one, whose
// refusal says what would.
std::string FormatThatFits(const planner::PlanQuestion& question, const plan::Plan& resolved,
                           int num_threads) {
  const int num_ranks = resolved.layout.num_ranks();
  for (const std::string& format : question.formats) {
    const planner::RankSetup setup = {num_ranks, num_threads, format};
    const auto needed = question.memory_of(setup, resolved, question.workload.batch);
    if (needed && needed->total() <= question.memory_per_rank(num_ranks)) return format;
  }
  return question.formats.back();
}

bool RanksShareCores() {
  const long num_cores = sysconf(_SC_NPROCESSORS_ONLN);  // whatever a launcher left to this rank
  return num_cores > 0 && LocalRankFromLauncher().count > num_cores;
}

// What is known of the machine, kept or measured now.
Result<cost::MachineProfile> FindProfile(const ModelOptions& options, const plan::Plan& resolved,
                                         const std::string& format, comm::Group& ranks) {
  Result<cost::MachineProfile> kept = evaluate::LoadMachineProfile(hardware::ProfilePath());
  if (options.plan.layout || RanksShareCores()) return kept;
  const Result<engine::KnownCosts> known =
      engine::AskForCosts(ranks,
                          {.weights = *kernels::WeightFormatFromName(format),
                           .wire = engine::WireFormatOf(resolved.wire, ranks.size()),
                           .num_threads = options.load.num_threads},
                          evaluate::KeptOrMeasuredCosts());
  if (!known) return known.error();
  cost::MachineProfile profile = kept ? *std::move(kept) : cost::MachineProfile();
  const cost::StepCosts& now = known->ranks;
  if (cost::StepCosts* old = profile.CostsOf(now.num_ranks, now.num_threads, now.weights)) {
    *old = now;
  } else {
    profile.steps.push_back(now);
  }
  return profile;
}

// Whether all cores of the host in one process would be faster, where this is known: people start
// ranks to gain something.
std::string SayOneProcess(planner::PlanQuestion question, const planner::Candidate& chosen) {
  if (!question.one_host) return "";
  question.constraints = {.num_ranks = 1,
                          .num_threads = chosen.setup.num_ranks * chosen.setup.num_threads};
  question.formats = {chosen.setup.weights};
  question.present.reset();
  const Result<planner::PlanAnswer> answer = SearchPlan(question);
  if (!answer) return "";
  const planner::PlanFigures& alone = *answer->candidates[answer->chosen].figures;
  if (alone.throughput_interval.low <= chosen.figures->throughput_interval.high) return "";
  return fmt::format(
      "; one process of {} would reach {:.4g}: leave mpirun out",
      FormatCount(static_cast<uint64_t>(*question.constraints.num_threads), "thread"),
      alone.throughput);
}

DefaultPlan Instead(const plan::Plan& resolved, const std::string& why) {
  return {.plan = resolved, .words = fmt::format("plan: as without a profile, since {}", why)};
}

}  // namespace

std::optional<DefaultPlan> PlanByDefault(const ModelOptions& options, const model::ModelSpec& spec,
                                         const plan::Plan& resolved, comm::Group& ranks) {
  const int num_ranks = resolved.layout.num_ranks();
  // Costs are those of the formats that go with weights by default, and of a decoder's steps.
  if (options.load.formats.activations || spec.has_encoder() || resolved.auto_pipeline ||
      resolved.decode) {
    return {};
  }
  const Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.load.num_threads);
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
  if (!cpus || !available) return {};
  const auto num_threads = static_cast<int>(std::ssize(*cpus));
  planner::Workload workload = options.workload;
  workload.batch = options.load.max_sequences;
  cost::MachineProfile profile;
  const planner::MeasuredSource source(profile);
  planner::PlanQuestion question{.spec = spec, .workload = workload, .source = source};
  question.num_ranks = num_ranks;
  question.formats = FormatsOf(options);
  question.one_host = LocalRankFromLauncher().count == num_ranks;
  question.constraints = ConstraintsOf(options.plan, resolved, num_threads);
  question.present = plan::Plan{.layout = resolved.layout, .wire = plan::Wire::kF32};
  question.clock = Now;
  engine::AnswerPlanQuestion(
      {.memory_of_host = available->bytes * num_ranks / LocalRankFromLauncher().count,
       .step_tokens = options.load.max_step_tokens},
      question);
  Result<cost::MachineProfile> found =
      FindProfile(options, resolved, FormatThatFits(question, resolved, num_threads), ranks);
  if (!found && RanksShareCores()) return Instead(resolved, "ranks share cores");
  if (!found && options.plan.layout) return {};
  if (!found) return Instead(resolved, found.error().message);
  profile = *std::move(found);
  const Result<planner::PlanAnswer> answer = SearchPlan(question);
  if (!answer) return Instead(resolved, answer.error().message);
  const planner::Candidate& chosen = answer->candidates[answer->chosen];
  DefaultPlan plan{.plan = chosen.plan, .words = {}};
  plan.plan.gemm = resolved.gemm;
  plan.plan.comm_budget = resolved.comm_budget;
  plan.plan.host_threads = resolved.host_threads;
  if (question.one_host && !options.plan.wire) plan.plan.wire = resolved.wire;
  plan.words = fmt::format(
      "plan: {}, predicted {:.4g} tokens/s, the best of {} that compute "
      "what one rank would (--no-plan: as without a profile){}",
      Describe(chosen), chosen.figures->throughput,
      std::ranges::count_if(
          answer->candidates,
          [](const planner::Candidate& one) { return one.is_ranked() && one.is_allowed(); }),
      SayOneProcess(question, chosen));
  return plan;
}

}  // namespace convene::cli
