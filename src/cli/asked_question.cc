#include "cli/asked_question.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "checkpoint/model_files.h"
#include "cli/plan_report.h"
#include "engine/plan_question.h"
#include "engine/rank_options.h"
#include "hardware/memory_status.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "planner/explain_plan.h"
#include "weights/packed_directory.h"

namespace convene::cli {
namespace {

std::vector<std::string> FormatsOf(const ModelOptions& options) {
  if (weights::IsPackedDirectory(options.directory)) {
    const auto packed = weights::OpenPackedDirectory(options.directory);
    if (packed) return {std::string(kernels::Name(packed->formats.matrices))};
  }
  const engine::FormatWishes& wishes = options.load.formats;
  if (wishes.weights) return {std::string(kernels::Name(*wishes.weights))};
  return engine::AutomaticFormats();
}

}  // namespace

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::unique_ptr<AskedQuestion> AskQuestion(const ModelOptions& options,
                                           const model::ModelSpec& spec, int num_ranks) {
  const LocalRank local = LocalRankFromLauncher();
  const Result<std::vector<int>> cpus = hardware::CpusForThisRank(local, options.load.num_threads);
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
  const Result<planner::Allowed> allowed = ParseAllowed(options.plan.allowed);
  if (!cpus || !available || !allowed) return nullptr;
  auto asked = std::make_unique<AskedQuestion>(options, spec);
  asked->num_threads = static_cast<int>(std::ssize(*cpus));
  planner::PlanQuestion& question = asked->question;
  question.num_ranks = num_ranks;
  question.formats = FormatsOf(options);
  question.int8_kv = options.load.formats.kv == kernels::KvFormat::kInt8;
  question.constraints.whole_matrices = weights::IsPackedDirectory(options.directory);
  question.one_host = local.count == num_ranks;
  question.allowed = *allowed;
  question.clock = SecondsNow;
  std::optional<uint64_t> budget = options.load.memory_budget;
  if (budget) {
    budget = std::min<uint64_t>(engine::LeftOfBudget(*budget),
                                available->bytes / static_cast<uint64_t>(local.count));
  }
  asked->setting = {.memory_per_rank = budget,
                    .memory_of_host = available->bytes * num_ranks / local.count,
                    .step_tokens = options.load.max_step_tokens,
                    .spills_kv = options.load.batch_work.has_value() &&
                                 options.load.spill_directory != engine::kNoSpill};
  engine::AnswerPlanQuestion(asked->setting, question);
  return asked;
}

nlohmann::ordered_json ReportOf(const ModelOptions& options, planner::PlanSearch& search,
                                const planner::PlanAnswer& answer,
                                const cost::MachineProfile& costs) {
  const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(options.directory);
  if (!config) return nullptr;
  const planner::Explanation explanation = ExplainPlan(search, answer);
  const std::optional<Verification> verification;
  return ToJson(PlanReport{.question = search.question(),
                           .answer = answer,
                           .explanation = explanation,
                           .model = options.directory,
                           .model_hash = plan::ModelHash(config->json),
                           .profile = hardware::ProfilePath(),
                           .plan_path = "",
                           .costs = costs,
                           .config = config->json,
                           .verification = verification,
                           .use = PlanUse::kServe});
}

}  // namespace convene::cli
