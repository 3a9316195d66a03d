#include "cli/plan_by_default.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/plain_number.h"
#include "base/units.h"
#include "checkpoint/model_files.h"
#include "cli/asked_question.h"
#include "cli/known_disk.h"
#include "cli/plan_changes.h"
#include "cli/verify_plan.h"
#include "engine/ask_for_costs.h"
#include "engine/choose_pipeline.h"
#include "engine/crossovers.h"
#include "engine/rank_options.h"
#include "evaluate/known_costs.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/try_plans.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "planner/plan_search.h"
#include "planner/sequences_together.h"
#include "planner/verification_price.h"

namespace convene::cli {
namespace {

// `are_free`: fewer ranks than were started may be used, with more threads each.
planner::Constraints ConstraintsOf(const PlanOptions& options, const plan::Plan& resolved,
                                   int num_threads, bool are_free) {
  const int num_ranks = resolved.layout.num_ranks();
  planner::Constraints constraints;
  if (are_free) {
    constraints.num_cores = num_ranks * num_threads;
  } else {
    constraints.num_ranks = num_ranks;
    constraints.num_threads = num_threads;
  }
  if (options.layout) constraints.layout = resolved.layout;
  if (options.pipeline || options.no_overlap) constraints.pipeline = resolved.pipeline;
  constraints.disaggregates = options.disaggregate;
  if (options.strategy) {
    constraints.strategy = *plan::DisaggregatedStrategyFromName(*options.strategy);
  }
  if (options.order) constraints.order = *plan::OrderFromName(*options.order);
  // The layouts of its ranks take turns by these two; of ranks that have both there are none.
  if (constraints.pipeline && resolved.layout.disaggregates) {
    constraints.pipeline = strategy::Pipeline{.chunks = resolved.pipeline.chunks,
                                              .cut = resolved.pipeline.cut,
                                              .overlap = resolved.pipeline.overlap};
  }
  if (options.micro_batches || options.no_overlap) {
    constraints.micro_batches = resolved.pipeline.micro_batches;
  }
  if (options.wire) constraints.wire = resolved.wire;
  return constraints;
}

bool RanksShareCores() {
  const long num_cores = sysconf(_SC_NPROCESSORS_ONLN);  // whatever a launcher left to this rank
  return num_cores > 0 && LocalRankFromLauncher().count > num_cores;
}

Result<KnownRanks> WithoutMemory(Result<cost::MachineProfile> profile) {
  if (!profile) return profile.error();
  return KnownRanks{.profile = *std::move(profile)};
}

// What is known of the machine, kept or measured now.
Result<KnownRanks> FindProfile(const ModelOptions& options, const plan::Plan& resolved,
                               const std::string& format, comm::Group& ranks) {
  if (options.plan.layout)
    return WithoutMemory(evaluate::LoadMachineProfile(hardware::ProfilePath()));
  return KeptOrMeasuredProfile(ranks, format, options.load.formats.kv == kernels::KvFormat::kInt8,
                               resolved.wire, options.load.num_threads, options.load.memory_budget);
}

// Nothing: the disk is known, or nothing would be read from it.
std::optional<KnownDisk> LearnDiskIfNeeded(const ModelOptions& options,
                                           const model::ModelSpec& spec, bool fits,
                                           cost::MachineProfile& profile) {
  const bool has_experts = std::ranges::any_of(
      spec.layers, [](const model::LayerSpec& layer) { return layer.moe.has_value(); });
  if (fits || !has_experts || profile.machine.disk_gbps > 0) return {};
  const char* const why_not = options.plan.layout ? "nothing is measured where --layout is given"
                              : RanksShareCores() ? "ranks share cores, and nothing is measured"
                                                  : "";
  return LearnDisk(options, why_not, profile);
}

// Whether all cores of the host in one process would be faster, where this is known: people start
// ranks to gain something.
std::string SayOneProcess(planner::PlanQuestion question, const planner::Candidate& chosen) {
  if (!question.one_host || chosen.setup.num_ranks == 1) return "";
  question.constraints = {.num_ranks = 1,
                          .num_threads = chosen.setup.num_ranks * chosen.setup.num_threads,
                          .keeps_step_tokens = question.constraints.keeps_step_tokens};
  question.formats = {chosen.setup.weights};
  question.present.reset();
  const Result<planner::PlanAnswer> answer = SearchPlan(question);
  if (!answer) return "";
  const planner::PlanFigures& alone = *answer->candidates[answer->chosen].figures;
  if (alone.throughput_interval.low <= chosen.figures->throughput_interval.high) return "";
  return fmt::format(
      "; one process of {} would reach {}: leave mpirun out",
      FormatCount(static_cast<uint64_t>(*question.constraints.num_threads), "thread"),
      PlainNumber(alone.throughput));
}

DefaultPlan Instead(const plan::Plan& resolved, const std::string& why) {
  return {.plan = resolved, .words = fmt::format("plan: as without a profile, since {}", why)};
}

// Null: it can be.
const char* WhyNotSearched(const ModelOptions& options, const plan::Plan& resolved) {
  if (options.load.formats.activations) {
    return "costs are those of the activations that go with weights by default";
  }
  if (resolved.auto_pipeline) return "--pipeline auto chooses chunks once costs are known";
  if (resolved.decode) return "--decode-experts says how decode divides the experts";
  return nullptr;
}

// With so many sequences, and everything in memory.
bool Fits(const planner::PlanQuestion& question, const plan::Plan& plan,
          const planner::RankSetup& setup, int batch) {
  const auto needed = question.memory_of(setup, plan, batch);
  return needed && needed->fits(question.memory_per_rank(setup.num_ranks));
}

// As many sequences together as memory holds in the first format, where their lengths are known.
int BatchThatFits(const planner::PlanQuestion& question, const plan::Plan& resolved,
                  int num_threads) {
  const planner::RankSetup setup = {resolved.layout.num_ranks(), num_threads,
                                    question.formats.front(), question.int8_kv};
  for (int batch = question.workload.batch; batch >= 1; batch /= 2) {
    if (Fits(question, resolved, setup, batch)) return batch;
  }
  return question.workload.batch;
}

// What is usual, unless steps that were asked for are shorter: one has a token of each sequence.
void LimitToSteps(const ModelOptions& options, const planner::PlanQuestion& question,
                  planner::Workload& workload) {
  const bool is_usual = options.max_batch != nullptr && !options.says_max_batch();
  if (is_usual && question.constraints.keeps_step_tokens) {
    workload.batch = std::min(workload.batch, question.step_tokens);
  }
}

// Where more requests are there than usually run together, and nobody said how many should: as many
// as the plans that are best then answer all of them soonest with. In words, too.
std::string ChooseTogether(const ModelOptions& options, const planner::PlanQuestion& question,
                           planner::Workload& workload) {
  if (options.num_requests <= workload.batch || options.says_max_batch()) return "";
  workload.num_requests = static_cast<int>(
      std::min<int64_t>(options.num_requests, static_cast<int64_t>(planner::kMostRequests)));
  const Result<planner::BatchOfRequests> chosen = planner::ChooseBatch(question);
  if (!chosen) return "";  // the search says why
  workload.batch = chosen->batch;
  return fmt::format("; {} (--max-batch)", chosen->Describe(workload.num_requests));
}

// Where the work is long enough for it, runs the best plans, and corrects the choice by what they
// took. Says what was done, and how long it took.
std::string VerifyIfWorthIt(const ModelOptions& options, comm::Group& ranks,
                            planner::PlanSearch& search, planner::PlanAnswer& answer,
                            const cost::MachineProfile& profile, bool knows_disk) {
  const planner::Workload& workload = search.question().workload;
  const auto tokens =
      static_cast<int64_t>(static_cast<double>(options.num_requests) * workload.mean_gen_tokens());
  const std::vector<int> plans = PlansToTry(answer);
  const planner::RankSetup& setup = answer.candidates[answer.chosen].setup;
  if (setup.num_ranks != ranks.size()) return "";  // only all of them can try plans
  constexpr double kGiga = 1e9;
  const planner::VerificationPrice price =
      PriceVerification(search, answer, plans, tokens,
                        {.runs = 1 + static_cast<int>(evaluate::kFewestRuns),  // one to warm up
                         .decode_steps = evaluate::kDecodeSteps,
                         .ranks_per_host = LocalRankFromLauncher().count,
                         .disk_bytes_per_second = kGiga * profile.machine.disk_gbps,
                         .memory_bytes_per_second =
                             search.question().source.FiguresOf(setup).memory_bytes_per_second});
  if (plans.size() < 2 || !price.is_worth_it()) return "";
  const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(options.directory);
  if (!config) return "";  // loading the model will say so
  cost::MachineProfile learnt = profile;
  const double began = SecondsNow();
  VerifyWish wish{.directory = options.directory,
                  .model_hash = plan::ModelHash(config->json),
                  .seconds = price.gain - price.loading,
                  .most_load_seconds = price.gain};
  if (options.load.memory_budget) wish.memory_budgets = {*options.load.memory_budget};
  const Result<Verification> verified = VerifyPlans(wish, ranks, search, answer, &learnt);
  const std::string why = fmt::format(
      "{} s of the {} s that this work is predicted to take are what a wrong choice is "
      "expected to cost (--no-verify: trust the prediction)",
      PlainNumber(price.gain, 2), PlainNumber(price.work, 3));
  if (!verified) return fmt::format("\nnot verified: {}; {}", verified.error().message, why);
  const bool has_run = std::ranges::any_of(
      verified->plans, [](const VerifiedPlan& plan) { return plan.num_runs > 0; });
  if (!has_run) {
    return fmt::format("\nnot verified, which took {} s: {}; {}",
                       PlainNumber(SecondsNow() - began, 2), verified->verdict, why);
  }
  std::string words = fmt::format("\nverified by running for {} s, {} s with loading: {}; {}",
                                  PlainNumber(verified->run_seconds, 2),
                                  PlainNumber(SecondsNow() - began, 2), verified->verdict, why);
  if (verified->learnt.empty()) return words;
  if (!knows_disk) learnt.machine.disk_gbps = 0;
  const Status saved = hardware::SaveProfileJson(cost::ToJson(learnt), hardware::ProfilePath());
  return saved ? words
               : words + fmt::format("; what was learnt is lost: {}", saved.error().message);
}

// The best plan of the search, in words too.
DefaultPlan DescribeChosen(const ModelOptions& options, const plan::Plan& resolved,
                           const planner::PlanQuestion& question, const planner::PlanAnswer& answer,
                           const std::string& first_format) {
  const planner::Candidate& chosen = answer.candidates[answer.chosen];
  DefaultPlan plan{.plan = chosen.plan, .words = {}};
  plan.plan.weights = chosen.setup.weights == first_format ? "" : chosen.setup.weights;
  // Elsewhere a rank may have another share of its host's cores.
  if (question.one_host) plan.plan.num_threads = chosen.setup.num_threads;
  plan.plan.gemm = resolved.gemm;
  plan.plan.comm_budget = resolved.comm_budget;
  plan.plan.host_threads = resolved.host_threads;
  if (question.one_host && !options.plan.wire && !question.allowed.wire) {
    plan.plan.wire = resolved.wire;
  }
  // What was asked for may change them as well as what is allowed.
  const auto is_choice = [](const planner::Candidate& one) {
    return one.is_ranked() && one.is_allowed();
  };
  const bool are_exact = std::ranges::all_of(answer.candidates, [&](const planner::Candidate& one) {
    return !is_choice(one) || ChangesOf(question, one, first_format).empty();
  });
  const std::string changes = JoinedChangesOf(question, chosen, first_format);
  plan.words = fmt::format(
      "plan: {}, predicted {} tokens/s, the best of {} that {} (--no-plan: as without a "
      "profile){}{}{}",
      Describe(chosen), PlainNumber(chosen.figures->throughput),
      std::ranges::count_if(answer.candidates, is_choice),
      are_exact ? "compute what one rank would" : "are allowed", changes.empty() ? "" : "; ",
      changes, SayOneProcess(question, chosen));
  return plan;
}

}  // namespace

std::vector<uint64_t> UnlikeMemory(std::vector<uint64_t> memory, std::optional<uint64_t> budget) {
  if (memory.empty()) return {};
  for (uint64_t& bytes : memory) {
    if (budget) bytes = std::min(bytes, engine::LeftOfBudget(*budget));
  }
  const auto [least, most] = std::ranges::minmax_element(memory);
  constexpr double kAlike = 0.05;
  if (static_cast<double>(*most - *least) <= kAlike * static_cast<double>(*most)) return {};
  return memory;
}

Result<KnownRanks> KeptOrMeasuredProfile(comm::Group& ranks, const std::string& format,
                                         bool int8_kv, plan::Wire wire,
                                         std::optional<int> num_threads,
                                         std::optional<uint64_t> memory_budget) {
  if (RanksShareCores()) {
    return WithoutMemory(evaluate::LoadMachineProfile(hardware::ProfilePath()));
  }
  const Result<engine::KnownCosts> known =
      engine::AskForCosts(ranks,
                          {.weights = *kernels::WeightFormatFromName(format),
                           .wire = engine::WireFormatOf(wire, ranks.size()),
                           .int8_kv = int8_kv,
                           .num_threads = num_threads,
                           .memory_budget = memory_budget},
                          evaluate::KeptOrMeasuredCosts());
  if (!known && known.error().kind == ErrorKind::kResourceExhausted) {
    return Error{fmt::format("what steps cost cannot be measured in so much memory ({}): {}",
                             known.error().message,
                             planner::HowToMeasure(ranks.size(), num_threads, format, /*file=*/"")),
                 known.error().kind};
  }
  if (!known) return known.error();
  // Where the costs have just been measured, with what was kept of this machine before. What is of
  // another one could not be replaced.
  Result<cost::MachineProfile> kept = evaluate::LoadMachineProfile(hardware::ProfilePath());
  const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
  const bool is_of_here =
      kept && kernels &&
      engine::IsOf(kept->machine, engine::ComputesHereWith((*kernels)->name, /*cpus=*/{}));
  cost::MachineProfile profile = is_of_here ? *std::move(kept) : cost::MachineProfile();
  const cost::StepCosts& now = known->ranks;
  if (cost::StepCosts* old = profile.CostsOf(now.num_ranks, now.num_threads, now.weights)) {
    *old = now;
  } else {
    profile.steps.push_back(now);
  }
  return KnownRanks{.profile = std::move(profile), .memory = known->memory_of_ranks};
}

std::string FormatThatFits(const planner::PlanQuestion& question, const plan::Plan& resolved,
                           int num_threads) {
  const int num_ranks = resolved.layout.num_ranks();
  for (const std::string& format : question.formats) {
    const planner::RankSetup setup = {num_ranks, num_threads, format, question.int8_kv};
    if (Fits(question, resolved, setup, question.workload.batch)) return format;
  }
  return question.formats.back();
}

namespace {

// Which candidate runs as the plan does on so many threads; -1: none.
int CandidateOf(const planner::PlanAnswer& answer, const plan::Plan& plan,
                const planner::RankSetup& setup) {
  for (int i = 0; i < std::ssize(answer.candidates); ++i) {
    const planner::Candidate& one = answer.candidates[i];
    const bool is_same_wire = one.plan.wire == plan.wire || setup.num_ranks == 1 ||
                              (plan.wire == plan::Wire::kAuto && one.plan.wire == plan::Wire::kF32);
    const bool is_same_step =
        one.plan.layout == plan.layout && one.plan.decode == plan.decode &&
        one.plan.pipeline == plan.pipeline &&
        (one.plan.step_tokens == 0 || one.plan.step_tokens == plan.step_tokens) &&
        one.plan.lines.empty() == plan.lines.empty();
    if (one.is_ranked() && one.setup == setup && is_same_step && is_same_wire) return i;
  }
  return -1;
}

}  // namespace

Result<nlohmann::ordered_json> ExplainGivenPlan(const ModelOptions& options,
                                                const model::ModelSpec& spec,
                                                const plan::Plan& given, int num_started) {
  if (options.load.formats.activations) {
    return Error{"costs are known of the activations that go with the weights by default"};
  }
  Result<cost::MachineProfile> profile = evaluate::LoadMachineProfile(hardware::ProfilePath());
  if (!profile) {
    return Error{
        "no profile of this machine is kept, or it cannot be read; `convene measure` makes one"};
  }
  const std::unique_ptr<AskedQuestion> asked = AskQuestion(options, spec, num_started);
  if (!asked) return Error{"the cores and the memory that are here could not be read"};
  const int num_ranks = given.layout.num_ranks();
  if (!options.load.formats.kv && given.kv_cache == "int8") {
    asked->question.int8_kv = true;
    engine::AnswerPlanQuestion(asked->setting, asked->question);
  }
  const planner::RankSetup setup = {
      num_ranks, given.num_threads > 0 ? given.num_threads : asked->num_threads,
      given.weights.empty() ? FormatThatFits(asked->question, given, asked->num_threads)
                            : given.weights,
      asked->question.int8_kv};
  asked->profile = *std::move(profile);
  asked->question.constraints.keeps_step_tokens = !options.knows_work || options.says_chunk();
  const int usual = asked->setting.step_tokens;
  asked->setting.step_tokens = given.step_tokens_for(asked->workload.batch, usual);
  if (asked->setting.step_tokens != usual) {
    engine::AnswerPlanQuestion(asked->setting, asked->question);
  }
  // Other numbers of ranks that the profile knows are alternatives, too.
  for (const cost::StepCosts& costs : asked->profile.steps) {
    asked->question.num_ranks = std::max(asked->question.num_ranks, costs.num_ranks);
  }
  planner::PlanSearch search(asked->question);
  Result<planner::PlanAnswer> answer = SearchPlan(search);
  if (!answer) return answer.error();
  const int in_force = CandidateOf(*answer, given, setup);
  if (in_force < 0) {
    return Error{fmt::format(
        "nothing is predicted of it: the kept profile has no costs of {} with {} of {} "
        "weights, or the search leaves such plans out",
        FormatCount(static_cast<uint64_t>(setup.num_ranks), "rank"),
        FormatCount(static_cast<uint64_t>(setup.num_threads), "thread"), setup.weights)};
  }
  if (answer->chosen != in_force) answer->why_chosen = "it was given, not searched for";
  answer->chosen = in_force;
  return ReportOf(options, search, *answer, asked->profile);
}

std::optional<DefaultPlan> PlanBatchAlone(const ModelOptions& options, const model::ModelSpec& spec,
                                          const plan::Plan& resolved) {
  const bool is_decided = options.says_max_batch() && options.says_chunk();
  if (is_decided || options.load.formats.activations || spec.has_encoder()) return {};
  const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
  const std::unique_ptr<AskedQuestion> asked = AskQuestion(options, spec, /*num_ranks=*/1);
  if (!asked || !kernels) return {};
  planner::PlanQuestion& question = asked->question;
  planner::Workload& workload = asked->workload;
  workload.batch = static_cast<int>(std::min<int64_t>(workload.batch, options.num_requests));
  question.constraints.keeps_step_tokens = options.says_chunk();
  LimitToSteps(options, question, workload);
  workload.batch = BatchThatFits(question, resolved, asked->num_threads);
  const std::string format = FormatThatFits(question, resolved, asked->num_threads);
  const planner::RankSetup setup = {1, asked->num_threads, format, question.int8_kv};
  Result<cost::MachineProfile> kept =
      evaluate::KeptProfile(setup, (*kernels)->name, hardware::ProfilePath());
  if (!kept) return {};
  asked->profile = *std::move(kept);
  question.formats = {format};
  question.constraints = {.num_ranks = 1,
                          .num_threads = asked->num_threads,
                          .keeps_step_tokens = options.says_chunk(),
                          .whole_matrices = question.constraints.whole_matrices};
  question.present = plan::Plan{.layout = resolved.layout, .wire = plan::Wire::kF32};
  // A model that fits memory stays there, however many run together: loading does not page it.
  if (Fits(question, resolved, setup, workload.batch)) question.experts_that_fit = nullptr;
  const std::string batch = ChooseTogether(options, question, workload);
  const Result<planner::PlanAnswer> answer = SearchPlan(question);
  if (!answer) return {};
  const planner::Candidate& chosen = answer->candidates[answer->chosen];
  if (chosen.plan.experts_in_memory || (batch.empty() && chosen.plan.step_tokens == 0)) return {};
  DefaultPlan plan{.plan = resolved, .words = {}};
  plan.plan.step_tokens = chosen.plan.step_tokens;
  if (!batch.empty()) plan.plan.sequences = workload.batch;
  plan.words = fmt::format(
      "plan: {}, predicted {} tokens/s by the costs that are kept (--no-plan: as "
      "without a profile){}",
      Describe(chosen), PlainNumber(chosen.figures->throughput), batch);
  return plan;
}

std::optional<DefaultPlan> PlanByDefault(const ModelOptions& options, const model::ModelSpec& spec,
                                         const plan::Plan& resolved, comm::Group& ranks) {
  const int num_ranks = resolved.layout.num_ranks();
  if (const char* const why = WhyNotSearched(options, resolved)) {
    return Instead(resolved, why);
  }
  const std::unique_ptr<AskedQuestion> asked = AskQuestion(options, spec, num_ranks);
  if (!asked) return {};
  planner::Workload& workload = asked->workload;
  planner::PlanQuestion& question = asked->question;
  const bool whole_matrices = question.constraints.whole_matrices;
  question.constraints =
      ConstraintsOf(options.plan, resolved, asked->num_threads,
                    question.one_host && !options.plan.layout && !options.load.num_threads);
  question.constraints.whole_matrices = whole_matrices;
  question.constraints.keeps_step_tokens = !options.knows_work || options.says_chunk();
  LimitToSteps(options, question, workload);
  question.present = plan::Plan{.layout = resolved.layout, .wire = plan::Wire::kF32};
  if (resolved.layout.disaggregates) question.present->pipeline = resolved.pipeline;
  if (options.plan.disaggregate && !options.plan.layout) question.present.reset();  // nobody's plan
  if (options.num_requests > 0) {
    workload.batch = static_cast<int>(std::min<int64_t>(workload.batch, options.num_requests));
    workload.batch = BatchThatFits(question, resolved, asked->num_threads);
  }
  std::string first_format = FormatThatFits(question, resolved, asked->num_threads);
  Result<KnownRanks> found = FindProfile(options, resolved, first_format, ranks);
  if (!found && RanksShareCores()) return Instead(resolved, "ranks share cores");
  if (!found && options.plan.layout) return {};
  if (!found) return Instead(resolved, found.error().message);
  asked->profile = std::move(found->profile);
  asked->setting.rank_memory = UnlikeMemory(found->memory, options.load.memory_budget);
  if (!asked->setting.rank_memory.empty()) {
    asked->setting.is_one_host = question.one_host;
    engine::AnswerPlanQuestion(asked->setting, question);
    workload.batch = options.num_requests > 0
                         ? BatchThatFits(question, resolved, asked->num_threads)
                         : workload.batch;
    // Ranks that have less than this one may want another format, of which other costs are known.
    const std::string format = FormatThatFits(question, resolved, asked->num_threads);
    if (format != std::exchange(first_format, format)) {
      Result<KnownRanks> again = FindProfile(options, resolved, first_format, ranks);
      if (again) asked->profile = std::move(again->profile);
    }
  }
  const planner::RankSetup whole = {num_ranks, asked->num_threads, first_format, question.int8_kv};
  const std::optional<KnownDisk> disk = LearnDiskIfNeeded(
      options, spec, Fits(question, resolved, whole, workload.batch), asked->profile);
  const std::string batch = ChooseTogether(options, question, workload);
  planner::PlanSearch search(question);
  Result<planner::PlanAnswer> answer = SearchPlan(search);
  if (!answer) return Instead(resolved, answer.error().message);
  const std::string verified = options.verifies
                                   ? VerifyIfWorthIt(options, ranks, search, *answer,
                                                     asked->profile, !disk || disk->is_measured)
                                   : "";
  DefaultPlan plan = DescribeChosen(options, resolved, question, *answer, first_format);
  if (!batch.empty() && plan.plan.sequences == 0) plan.plan.sequences = workload.batch;
  const bool reads_disk = answer->candidates[answer->chosen].plan.experts_in_memory.has_value();
  plan.words += batch + (disk && reads_disk ? "; " + disk->words : "") + verified;
  if (options.explains) plan.report = ReportOf(options, search, *answer, asked->profile);
  return plan;
}

}  // namespace convene::cli
