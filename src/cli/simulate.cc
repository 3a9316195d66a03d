#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "base/units.h"
#include "checkpoint/model_files.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/plan_page.h"
#include "cli/plan_report.h"
#include "cli/planned_question.h"
#include "cli/profile_option.h"
#include "cli/text_table.h"
#include "cli/value_options.h"
#include "cli/workload_options.h"
#include "drawing/gantt.h"
#include "engine/load_options.h"
#include "engine/plan_question.h"
#include "evaluate/inspection.h"
#include "hardware/profile.h"
#include "planner/operator_pricer.h"
#include "planner/plan_search.h"

namespace convene::cli {
namespace {

constexpr int kMostSimulatedRanks = 1024;
constexpr int kFewestStepTokens = 64;  // that are told as a remedy: fewer would be very slow
constexpr double kMostSolverSeconds = 1e6;
constexpr double kLeastShownShare = 0.001;  // of a phase, by kind of task

using nlohmann::ordered_json;
using planner::Candidate;
using planner::PlanFigures;

// Seconds of a phase, by kinds of task that are waited for.
struct PricedPhase {
  std::string name;
  double seconds = 0;
  double once = 0;  // besides tasks
  cost::KindSeconds by_kind = {};
};

PricedPhase PhaseOf(std::string name, const PlanFigures& figures, double seconds) {
  PricedPhase phase{.name = std::move(name), .seconds = seconds, .once = seconds};
  for (size_t kind = 0; kind < figures.path.size(); ++kind) {
    phase.by_kind[kind] = figures.path[kind];
    phase.once -= phase.by_kind[kind];
  }
  return phase;
}

std::string PhasesText(const std::vector<PricedPhase>& phases) {
  TextTable table;
  std::vector<std::string> head = {"seconds by kind of task"};
  for (const PricedPhase& phase : phases) head.push_back(phase.name);
  table.AddRow(head);
  table.AddRule();
  for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    const bool is_shown = std::any_of(phases.begin(), phases.end(), [&](const PricedPhase& phase) {
      return phase.by_kind[kind] > kLeastShownShare * phase.seconds;
    });
    if (!is_shown) continue;
    std::vector<std::string> row = {
        std::string(schedule::Name(static_cast<schedule::TaskKind>(kind)))};
    for (const PricedPhase& phase : phases) row.push_back(FormatSeconds(phase.by_kind[kind]));
    table.AddRow(row);
  }
  return table.Format();
}

ordered_json PhasesJson(const std::vector<PricedPhase>& phases) {
  ordered_json json;
  for (const PricedPhase& phase : phases) {
    ordered_json kinds = ordered_json::object();
    for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
      if (!(phase.by_kind[kind] > 0)) continue;
      kinds[schedule::Name(static_cast<schedule::TaskKind>(kind))] = phase.by_kind[kind];
    }
    json[phase.name] = {
        {"seconds", phase.seconds}, {"besides_tasks", std::max(0.0, phase.once)}, {"tasks", kinds}};
  }
  return json;
}

class SimulateCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "PLAN", plan_path_, "A plan.json, as convene plan --out writes it");
    AddPath(app, "--model", model_,
            "Model directory, or a bare config.json (default: the one that the plan names)")
        ->type_name("MODEL");
    AddProfileOption(app, profile_);
    AddWorkloadOptions(app, workload_options_);
    AddMemoryOption(app, memory_);
    AddDiskRateOption(app, disk_rate_);
    AddPath(app, "--svg", svg_path_, "Draw a step of prefill")
        ->type_name("FILE.svg")
        ->check(WritableFile());
    AddJsonOption(app, json_path_);
    AddNumber(app, "--chunk", step_tokens_, {1, engine::kMaxStepTokens},
              "Most tokens of a step of a group of ranks (default: the plan's, or 512)")
        ->group(kRareOptions);
  }

  Status Run() override {
    if (Status read = ReadPlan(); !read) return read;
    const bool says_chunk = step_tokens_.has_value();
    if (says_chunk) plan_.step_tokens = 0;  // what was asked for holds
    const Result<model::ModelSpec> spec = evaluate::SpecAsLoaded(model_);
    if (!spec) return spec.error();
    const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(model_);
    if (!config) return config.error();
    const int num_ranks = plan_.layout.num_ranks();
    Status meant = plan::CheckMadeFor(plan_, plan::ModelHash(config->json), num_ranks);
    if (!meant) return meant.error().At(plan_path_);
    Result<planner::Workload> workload = FindWorkload();
    if (!workload) return workload.error();
    LeaveOutTooLong(spec->max_positions, *workload);
    if (Status sense = CheckWorkload(*workload, *spec); !sense) return sense;
    Result<cost::MachineProfile> profile = LoadProfile(profile_, num_ranks);
    if (!profile) return profile.error();
    if (disk_rate_) profile->machine.disk_gbps = *disk_rate_;
    const planner::MeasuredSource measured(*profile, profile_);
    const planner::OperatorSource by_operators(*profile, OptionsOf(plan_));
    by_operators_ = profile->steps.empty();
    relatives_ = WordsOfRelatives(*profile);
    planner::PlanQuestion question{
        .spec = *spec,
        .workload = *workload,
        .source =
            by_operators_ ? static_cast<const planner::PricerSource&>(by_operators) : measured,
        .num_ranks = num_ranks,
        .int8_kv = plan_.kv_cache == "int8"};
    Status answered = AnswerByProfile(*profile, memory_, step_tokens_.value_or(512), question);
    if (!answered) return answered;
    question.constraints.keeps_step_tokens = says_chunk;
    question.experts_that_fit = nullptr;  // the plan says how many stay in memory
    if (Status fits = planner::CheckInputs(question); !fits) return fits;
    planner::PlanSearch search(question);
    search.AddSolverSeconds(solver_seconds_);
    Result<Candidate> candidate = Price(question, search);
    if (!candidate) return memory_.Explain(candidate.error(), num_ranks);
    return Write(search, *candidate);
  }

 private:
  // What was given, and of lengths and numbers that were not what the plan was made for.
  WorkloadOptions WithPlanned(const planner::Workload& planned) const {
    WorkloadOptions options = workload_options_;
    const auto fill = [](std::optional<int>& option, double value) {
      if (!option) option = static_cast<int>(std::lround(value));
    };
    if (options.trace.empty()) {
      fill(options.prompt_tokens, planned.mean_prompt_tokens());
      fill(options.gen_tokens, planned.mean_gen_tokens());
    }
    if (!options.batch && !options.requests && !options.arrival_rate) {
      if (planned.arrival_rate > 0) {
        options.arrival_rate = planned.arrival_rate;
      } else if (planned.num_requests > 0) {
        options.requests = planned.num_requests;
      } else {
        options.batch = planned.batch;
      }
    }
    if (!options.objective) {
      options.objective = std::string(planner::Name(planned.objective));
      const auto fill_limit = [](std::optional<double>& option, double limit) {
        if (!option && limit > 0) option = limit;
      };
      fill_limit(options.ttft_limit, planned.limits.ttft);
      fill_limit(options.time_per_token_limit, planned.limits.time_per_token);
    }
    return options;
  }

  // Where none was given, the one that the plan was made for, with the steps that were asked for.
  Result<planner::Workload> FindWorkload() {
    std::optional<PlannedQuestion> planned;
    if (!planned_.is_null()) {
      Result<PlannedQuestion> question = PlannedQuestionFromJson(planned_);
      if (!question) return question.error().At(plan_path_);
      planned = *std::move(question);
    }
    if (IsGiven(workload_options_) || !planned) {
      const bool is_beside = planned && workload_options_.path.empty();
      const WorkloadOptions options =
          is_beside ? WithPlanned(planned->workload) : workload_options_;
      Result<planner::Workload> workload = ReadWorkload(options);
      if (!workload) return workload;
      if (is_beside && options.routing.empty() && !options.skew) {
        workload->routing = planned->workload.routing;
      }
      // Those of a trace are not all as long as their mean.
      const bool has_lengths = workload_options_.prompt_tokens || workload_options_.gen_tokens;
      if (is_beside && options.trace.empty() && !has_lengths) {
        workload->requests = planned->workload.requests;
      }
      const bool is_usual = !workload_options_.batch && workload_options_.path.empty();
      const bool is_chosen = workload->num_requests > 0;
      if ((is_usual || is_chosen) && plan_.sequences > 0) workload->batch = plan_.sequences;
      if (is_chosen) workload->batch = std::min(workload->batch, workload->num_requests);
      if (is_chosen && plan_.sequences == 0) {
        return Error{fmt::format(
            "{} does not say how many requests run together (\"sequences\"): give --batch in place "
            "of their number",
            plan_path_)};
      }
      return workload;
    }
    if (!step_tokens_) step_tokens_ = planned->step_tokens;
    return planned->workload;
  }

  // Reads the plan and, where no model was given, where the plan's one is.
  Status ReadPlan() {
    const Result<std::string> text = ReadText(plan_path_);
    if (!text) return text.error();
    const Result<nlohmann::json> json = ParseJson(*text);
    if (!json) return json.error().At(plan_path_);
    Result<plan::Plan> plan = plan::PlanFromJson(*json);
    if (!plan) return plan.error().At(plan_path_);
    plan_ = *std::move(plan);
    const int num_ranks = plan_.layout.num_ranks();
    if (num_ranks > kMostSimulatedRanks) {
      return Error{fmt::format("{} is for {} ranks; at most {} can be simulated", plan_path_,
                               num_ranks, kMostSimulatedRanks)};
    }
    const auto predicted = json->find("predicted");
    const auto member = [&](const char* name) {
      return predicted == json->end() ? nlohmann::json() : predicted->value(name, nlohmann::json());
    };
    // Part of what the plan that the search found takes.
    if (const nlohmann::json solver = member("solver_s"); solver.is_number()) {
      solver_seconds_ = std::clamp(solver.get<double>(), 0.0, kMostSolverSeconds);
    }
    planned_ = member("question");
    if (!model_.empty()) return {};
    if (const nlohmann::json model = member("model"); model.is_string()) {
      model_ = model.get<std::string>();
    }
    if (!model_.empty()) return {};
    return Error{fmt::format("{} does not name its model: give it with --model", plan_path_)};
  }

  static cost::OperatorCostsOptions OptionsOf(const plan::Plan& plan) {
    cost::OperatorCostsOptions options;
    if (plan.gemm == plan::GemmChoice::kGrouped) options.order = cost::ExpertsOrder::kGrouped;
    if (plan.gemm == plan::GemmChoice::kDense) options.order = cost::ExpertsOrder::kDense;
    return options;
  }

  // The plan with its figures. What it leaves open is as when it runs: the first format that fits,
  // and of the numbers of threads that costs are known of the largest.
  Result<Candidate> Price(const planner::PlanQuestion& question,
                          planner::PlanSearch& search) const {
    std::vector<std::string> formats = {plan_.weights};
    if (plan_.weights.empty()) formats = engine::AutomaticFormats();
    Candidate candidate{.setup = {}, .plan = plan_};
    const int batch = planner::FewestTogether(question.workload);
    for (const std::string& format : formats) {
      candidate.setup = {question.num_ranks, plan_.num_threads, format, question.int8_kv};
      // Of a machine that is not here the prices are those of whole ranks.
      if (candidate.setup.num_threads == 0 || by_operators_) {
        const std::vector<int> threads = question.source.ThreadsOf(question.num_ranks, format);
        if (!threads.empty()) candidate.setup.num_threads = threads.back();
      }
      const Result<planner::RankMemory> memory = question.memory_of(candidate.setup, plan_, batch);
      if (!memory) return memory.error().At(plan_path_);
      candidate.memory = *memory;
      candidate.memory_limit = memory->limit(question.memory_per_rank(question.num_ranks));
      if (memory->total() <= candidate.memory_limit) break;
    }
    if (candidate.memory.total() > candidate.memory_limit) {
      const int tokens = plan_.step_tokens_for(batch, question.step_tokens);
      return ResourceExhausted(fmt::format(
          "a rank of this plan needs {} with weights in {}, {} together and steps of at most {} "
          "(weights {}, KV cache {}, working memory {}), and has {}: {}",
          FormatBytes(candidate.memory.total()), candidate.setup.weights,
          FormatCount(static_cast<uint64_t>(batch), "sequence"),
          FormatCount(static_cast<uint64_t>(tokens), "token"),
          FormatBytes(candidate.memory.weights_bytes), FormatBytes(candidate.memory.kv_bytes),
          FormatBytes(candidate.memory.working_bytes), FormatBytes(candidate.memory_limit),
          WhatWouldFit(question, candidate, batch)));
    }
    search.Price(candidate);
    if (!candidate.figures) return Error{candidate.reason};
    return candidate;
  }

  // What would make room, each of which is tried.
  static std::string WhatWouldFit(const planner::PlanQuestion& question, const Candidate& candidate,
                                  int batch) {
    const auto fits = [&](const planner::RankSetup& setup, const plan::Plan& plan, int sequences) {
      const Result<planner::RankMemory> memory = question.memory_of(setup, plan, sequences);
      return memory && memory->fits(question.memory_per_rank(question.num_ranks));
    };
    std::vector<std::string> remedies;
    int fewer = batch / 2;
    while (fewer > 0 && !fits(candidate.setup, candidate.plan, fewer)) fewer /= 2;
    if (fewer > 0) remedies.push_back(FormatCount(static_cast<uint64_t>(fewer), "sequence"));
    plan::Plan shorter = candidate.plan;
    shorter.step_tokens = shorter.step_tokens_for(batch, question.step_tokens);
    // An encoder sees its input in one step.
    const int least_tokens = question.spec.has_encoder()
                                 ? shorter.step_tokens
                                 : std::max(kFewestStepTokens, shorter.sequences_of_group(batch));
    while (shorter.step_tokens / 2 >= least_tokens) {
      shorter.step_tokens /= 2;
      if (!fits(candidate.setup, shorter, batch)) continue;
      remedies.push_back(fmt::format("--chunk {}", shorter.step_tokens));
      break;
    }
    const std::vector<std::string> formats = engine::AutomaticFormats();
    const auto own = std::ranges::find(formats, candidate.setup.weights);
    for (auto format = own == formats.end() ? formats.begin() : own + 1; format != formats.end();
         ++format) {
      planner::RankSetup setup = candidate.setup;
      setup.weights = *format;
      if (!fits(setup, candidate.plan, batch)) continue;
      remedies.push_back(fmt::format("weights in {}", *format));
      break;
    }
    // With twice as many ranks each has half of the weights and sequences; what it may receive from
    // the others grows.
    const planner::RankMemory& memory = candidate.memory;
    if ((memory.weights_bytes + memory.kv_bytes) / 2 + 2 * memory.working_bytes <=
        candidate.memory_limit) {
      remedies.emplace_back("a plan of more ranks");
    }
    remedies.emplace_back("more memory (--memory-per-rank)");
    const std::string last = remedies.back();
    remedies.pop_back();
    return remedies.empty() ? last + " would do"
                            : fmt::format("{} or {} would do", fmt::join(remedies, ", "), last);
  }

  // Of prompts and of a step that generates, each asked for as what is to be small.
  static Result<std::vector<PricedPhase>> PhasesOf(planner::PlanSearch& search,
                                                   const Candidate& candidate) {
    planner::Workload workload = search.question().workload;
    workload.batch = candidate.figures->batch;
    workload.limits = {};
    workload.objective = planner::Objective::kTtft;
    const auto prompts = search.FiguresOf(candidate.setup, candidate.plan, workload);
    if (!prompts) return prompts.error();
    std::vector<PricedPhase> phases = {PhaseOf("prefill", *prompts, prompts->ttft)};
    if (!(prompts->time_per_token > 0)) return phases;
    workload.objective = planner::Objective::kTimePerToken;
    const auto step = search.FiguresOf(candidate.setup, candidate.plan, workload);
    if (!step) return step.error();
    phases.push_back(PhaseOf("decode", *step, step->time_per_token));
    return phases;
  }

  // What of the plan the prices do not know.
  std::vector<std::string> Notes(const Candidate& candidate) const {
    std::vector<std::string> notes;
    if (plan_.num_threads > 0 && plan_.num_threads != candidate.setup.num_threads) {
      notes.push_back(
          fmt::format("the {} of the plan are not in the prices, which are of {} for each rank",
                      FormatCount(static_cast<uint64_t>(plan_.num_threads), "thread"),
                      FormatCount(static_cast<uint64_t>(candidate.setup.num_threads), "thread")));
    }
    if (plan_.auto_pipeline) {
      notes.emplace_back("chunks are chosen where the plan runs; here each stage is one chunk");
    }
    if (plan_.host_threads > 0) notes.emplace_back("host_threads is not in the prices");
    if (!by_operators_ && plan_.gemm != plan::GemmChoice::kAuto) {
      notes.emplace_back("gemm is not in the prices: costs were measured as auto chooses");
    }
    if (!by_operators_ && plan_.comm_budget > 0) {
      notes.emplace_back("comm_budget is not in the prices: costs were measured without");
    }
    return notes;
  }

  Status Write(planner::PlanSearch& search, const Candidate& candidate) const {
    const Result<std::vector<PricedPhase>> phases = PhasesOf(search, candidate);
    if (!phases) return phases.error();
    const planner::Workload& workload = search.question().workload;
    const std::string profile = profile_.empty() ? hardware::ProfilePath() : profile_;
    std::vector<std::string> notes = Notes(candidate);
    if (by_operators_ && !relatives_.empty()) notes.push_back(relatives_);
    std::string text = fmt::format("{}: {}\n", model_, WorkloadWords(workload));
    text += ReportLine("plan", Describe(candidate));
    text += DescribeFigures(candidate, workload);
    text += ReportLine("costs from", profile);
    for (const std::string& note : notes) text += ReportLine("note", note);
    text += "\n" + PhasesText(*phases);
    if (Status told = WriteReport({json_path_, svg_path_}, text); !told) return told;
    if (!svg_path_.empty()) {
      const auto picture = PictureOf(search, candidate, strategy::Phase::kPrefill, profile);
      if (!picture) return picture.error();
      if (Status drawn = WriteText(svg_path_, GanttSvg(*picture)); !drawn) return drawn;
    }
    return WriteJson(json_path_, {{"model", model_},
                                  {"plan", plan::ToJson(plan_)},
                                  {"name", Describe(candidate)},
                                  {"profile", profile},
                                  {"workload", WorkloadJson(workload)},
                                  {"predicted", FiguresJson(candidate)},
                                  {"phases", PhasesJson(*phases)},
                                  {"notes", notes}});
  }

  std::string plan_path_;
  std::string model_;
  std::string profile_;
  WorkloadOptions workload_options_;
  MemoryOfRanks memory_;
  std::optional<double> disk_rate_;  // GB/s
  std::string svg_path_;
  std::string json_path_;
  std::optional<int> step_tokens_;
  nlohmann::json planned_;  // the question that the plan's file says it answers; null: none

  plan::Plan plan_;
  double solver_seconds_ = 0;
  bool by_operators_ = false;
  std::string relatives_;  // of operators that were measured elsewhere
};

}  // namespace

std::unique_ptr<Command> MakeSimulate() { return std::make_unique<SimulateCommand>(); }

}  // namespace convene::cli
