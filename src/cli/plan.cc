#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/quote.h"
#include "checkpoint/model_files.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
#include "cli/plan_by_default.h"
#include "cli/plan_changes.h"
#include "cli/plan_options.h"
#include "cli/plan_page.h"
#include "cli/plan_report.h"
#include "cli/planned_question.h"
#include "cli/profile_option.h"
#include "cli/value_options.h"
#include "cli/verify_plan.h"
#include "cli/workload_options.h"
#include "drawing/gantt.h"
#include "engine/choose_formats.h"
#include "engine/plan_question.h"
#include "evaluate/inspection.h"
#include "hardware/memory_status.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "planner/explain_plan.h"
#include "planner/operator_pricer.h"
#include "planner/plan_search.h"
#include "planner/where_plan_wins.h"
#include "weights/packed_directory.h"

namespace convene::cli {
namespace {

constexpr int kMostPlannedRanks = 64;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Where the chosen plan computes something else than one rank would, the best plan that does not
// is an alternative, too: what is gained for what changes.
void AddBestExact(planner::PlanSearch& search, const planner::PlanAnswer& answer,
                  planner::Explanation& explanation) {
  const planner::PlanQuestion& question = search.question();
  const std::string usual = UsualFormat(question, answer);
  const auto is_exact = [&](const planner::Candidate& one) {
    return one.is_ranked() && ChangesOf(question, one, usual).empty();
  };
  const planner::Candidate& chosen = answer.candidates[answer.chosen];
  const auto best = std::ranges::find_if(answer.candidates, is_exact);  // the fastest come first
  if (is_exact(chosen) || best == answer.candidates.end()) return;
  const int exact = static_cast<int>(best - answer.candidates.begin());
  std::vector<planner::Alternative>& alternatives = explanation.alternatives;
  if (std::ranges::find(alternatives, exact, &planner::Alternative::candidate) !=
      alternatives.end()) {
    return;
  }
  planner::PlanAtPoints at_chosen(search, chosen);
  planner::PlanAtPoints at_exact(search, *best);
  planner::Alternative alternative{.candidate = exact,
                                   .slower = best->figures->score / chosen.figures->score - 1,
                                   .reason = WhySlower(*best->figures, *chosen.figures)};
  alternative.would_win = WhereItWins(at_chosen, at_exact, alternative.slower < 0,
                                      planner::ParametersOf(search.question()));
  const auto place = std::ranges::find_if(
      alternatives, [&](const planner::Alternative& other) { return other.candidate > exact; });
  alternatives.insert(place, std::move(alternative));
}

class MakePlanCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "MODEL", model_, "Model directory, or a bare config.json");
    AddProfileOption(app, profile_);
    AddNumber(app, "--ranks", num_ranks_, {1, kMostPlannedRanks},
              "Ranks that there are; fewer may be used (default: the most that costs are known of; "
              "convene simulate prices plans of up to 1,024)");
    AddWorkloadOptions(app, workload_options_);
    AddAllowOption(app, allowed_);
    AddMemoryOption(app, memory_);
    AddDiskRateOption(app, disk_rate_);
    AddKvCacheOption(app, kv_cache_);
    AddPath(app, "-o,--out", out_path_, "Write the plan, which --plan reads")
        ->type_name("FILE.json")
        ->check(WritableFile());
    AddPath(app, "--svg", svg_path_, "Draw a step")->type_name("FILE.svg")->check(WritableFile());
    AddPath(app, "--html", html_path_, "Write a page with tables and pictures")
        ->type_name("FILE.html")
        ->check(WritableFile());
    AddNumber(app, "--verify", verify_seconds_, {0.01, 86400.0},
              "Run the best three so long, and confirm or correct the choice")
        ->type_name("SECONDS");
    app.add_flag("--explain", explain_, "Show what each pass did, and every rejected plan");
    AddJsonOption(app, json_path_);
    AddConstraints(app);
  }

  // Ranks other than 0 run plans that are tried, and measure what steps cost.
  std::string model_directory() const override {
    return verify_seconds_ || profile_.empty() ? model_ : "";
  }

  Status Run() override {
    if (Status fits = CheckVerify(); !fits) return fits;
    const Result<model::ModelSpec> spec = evaluate::SpecAsLoaded(model_);
    if (!spec) return spec.error();
    const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(model_);
    if (!config) return config.error();
    Result<planner::Workload> workload = ReadWorkload(workload_options_);
    if (!workload) return workload.error();
    workload_ = *std::move(workload);
    LeaveOutTooLong(spec->max_positions, workload_);
    Result<cost::MachineProfile> profile = FindProfile(*spec);
    if (!profile) return profile.error();
    const double known_disk_gbps = profile->machine.disk_gbps;
    if (disk_rate_) profile->machine.disk_gbps = *disk_rate_;
    if (verify_seconds_ && profile->steps.empty()) {
      return Error{fmt::format(
          "--verify runs plans here, and {} is of another machine: leave --profile out, "
          "or name a file of convene measure",
          profile_)};
    }
    const planner::MeasuredSource measured(*profile, profile_);
    const planner::OperatorSource by_operators(*profile);
    const planner::PricerSource& source =
        profile->steps.empty() ? static_cast<const planner::PricerSource&>(by_operators) : measured;
    planner::PlanQuestion question{.spec = *spec, .workload = workload_, .source = source};
    if (Status asked = Ask(*profile, &question); !asked) return asked;
    std::optional<planner::BatchOfRequests> batch;
    if (workload_.num_requests > 0) {
      Result<planner::BatchOfRequests> chosen = planner::ChooseBatch(question);
      if (!chosen) return memory_.Explain(chosen.error(), question.num_ranks);
      batch = *std::move(chosen);
      workload_.batch = batch->batch;
    }
    planner::PlanSearch search(question);
    Result<planner::PlanAnswer> answer = SearchPlan(search);
    if (!answer) return memory_.Explain(answer.error(), question.num_ranks);
    const std::string hash = plan::ModelHash(config->json);
    std::optional<Verification> verification;
    cost::MachineProfile learnt = *profile;  // the search goes on with what it began with
    learnt.machine.disk_gbps = known_disk_gbps;
    const int num_ranks = question.num_ranks;
    if (verify_seconds_) {
      Result<Verification> verified = VerifyPlans({.directory = model_,
                                                   .model_hash = hash,
                                                   .seconds = *verify_seconds_,
                                                   .memory_budgets = memory_.budgets(num_ranks)},
                                                  *ranks(), search, *answer, &learnt);
      if (!verified) return verified.error();
      verification = *std::move(verified);
    }
    planner::Explanation explanation = ExplainPlan(search, *answer);
    AddBestExact(search, *answer, explanation);
    const PlanReport report{.question = question,
                            .answer = *answer,
                            .explanation = explanation,
                            .model = model_,
                            .model_hash = hash,
                            .profile = ProfilePath(),
                            .plan_path = out_path_ == "-" ? "" : out_path_,
                            .costs = *profile,
                            .config = config->json,
                            .verification = verification,
                            .batch = batch};
    if (Status written = Write(report, search); !written) return written;
    if (!verification || verification->learnt.empty()) return {};
    return hardware::SaveProfileJson(cost::ToJson(learnt), ProfilePath());
  }

 private:
  // Under mpirun the ranks that were started measure what is not known of them, as those of other
  // commands do.
  Result<cost::MachineProfile> FindProfile(const model::ModelSpec& spec) {
    const int started = ranks()->size();
    if (!profile_.empty() || started == 1 || num_ranks_.value_or(started) != started) {
      return LoadProfile(profile_, num_ranks_.value_or(started));
    }
    const cost::MachineProfile nothing;
    const planner::MeasuredSource source(nothing);
    planner::PlanQuestion question{
        .spec = spec, .workload = workload_, .source = source, .num_ranks = started};
    if (Status formats = AskFormats(&question); !formats) return formats.error();
    if (Status asked = AnswerByProfile(nothing, memory_, step_tokens(), question); !asked) {
      return asked.error();
    }
    const plan::Plan usual{.layout = plan::DefaultLayout(started)};
    const std::string format = FormatThatFits(question, usual, num_threads_.value_or(1));
    // Measuring takes of a budget, but not of what a rank may have for the model.
    std::optional<uint64_t> budget;
    if (memory_.is_budget) budget = memory_.bytes.front();
    Result<KnownRanks> known = KeptOrMeasuredProfile(*ranks(), format, question.int8_kv,
                                                     plan::Wire::kAuto, num_threads_, budget);
    if (!known) {
      Result<cost::MachineProfile> kept = LoadProfile(profile_, started);
      if (kept) return kept;
      return Error{fmt::format("{}; nothing was measured now, since {}", kept.error().message,
                               known.error().message),
                   kept.error().kind};
    }
    unlike_memory_ = UnlikeMemory(known->memory, {});
    return std::move(known->profile);
  }

  int step_tokens() const { return step_tokens_.value_or(engine::LoadOptions{}.max_step_tokens); }

  std::string ProfilePath() const { return profile_.empty() ? hardware::ProfilePath() : profile_; }

  // All that can be verified is what was started.
  Status CheckVerify() const {
    if (!verify_seconds_) return {};
    const int started = ranks()->size();
    if (num_ranks_.value_or(started) == started) return {};
    return Error{fmt::format(
        "--verify runs plans on the ranks that were started, which {}, and --ranks asks for {}: "
        "start it with mpirun -n {} --bind-to none convene plan ..., or leave --ranks out",
        started == 1 ? "is 1" : fmt::format("are {}", started), *num_ranks_, *num_ranks_)};
  }

  void AddConstraints(CLI::App& app) {
    const auto rare = [](CLI::Option* option) { option->group(kRareOptions); };
    rare(AddNumber(
        app, "--chunk", step_tokens_, {1, engine::kMaxStepTokens},
        "Steps of at most so many tokens of a group of ranks (default: searched, from 512 on)"));
    rare(app.add_option("--weights", weights_, "Only this format (default: the first that fits)")
             ->check(CLI::IsMember({"auto", "bf16", "int8", "int4", "f32"}))
             ->type_name("FORMAT"));
    rare(AddNumber(app, "--threads", num_threads_, kPositive, "Only so many threads of each rank"));
    rare(AddLayoutOption(app, layout_, "Only this layout"));
    app.parse_complete_callback([this] {
      if (!layout_) return;
      const auto layout = LayoutOf(*layout_, disaggregation_.disaggregate);
      if (!layout) throw CLI::ValidationError("--layout: " + layout.error().message);
    });
    AddDisaggregationOptions(app, disaggregation_);
    rare(AddText(app, "--decode-experts", decode_experts_,
                 "Only plans that divide the experts so in decode, as in a layout: tp2")
             ->check(ParsedBy(plan::CheckExperts)));
    rare(AddText(app, "--pipeline", pipeline_,
                 "Only so many chunks: N, N:tokens or N:experts (auto: any)")
             ->check(ParsedBy([](std::string_view text) {
               plan::Plan unused;
               return plan::ParsePipeline(text, &unused);
             })));
    rare(AddNumber(app, "--micro-batches", micro_batches_, {1, strategy::kMostMicroBatches},
                   "Only so many parts of a step"));
    rare(AddText(app, "--wire", wire_, "Only this format between ranks: f32, bf16, fp8 or fp8-both")
             ->check(CLI::IsMember({"f32", "bf16", "fp8", "fp8-both"})));
    rare(AddPath(app, "--present", present_path_,
                 "A plan that is in use: it stays where a gain is not certain")
             ->type_name("FILE.json"));
    rare(AddWords(app, "--without", passes_off_, "Passes of the search to leave out (--explain)")
             ->check(ListParsedBy(planner::CheckPasses))
             ->type_name("PASSES"));
  }

  Status Ask(const cost::MachineProfile& profile, planner::PlanQuestion* question) {
    int most = 1;
    for (const cost::StepCosts& costs : profile.steps) most = std::max(most, costs.num_ranks);
    // Of unlike ranks the memories say how many there are.
    const size_t num_given = std::max(memory_.bytes.size(), unlike_memory_.size());
    if (num_given > 1) most = static_cast<int>(num_given);
    question->num_ranks = num_ranks_.value_or(most);
    if (verify_seconds_) {
      question->num_ranks = ranks()->size();
      question->constraints.num_ranks = ranks()->size();
    }
    if (Status fits = CheckDisaggregation(*question); !fits) return fits;
    if (Status formats = AskFormats(question); !formats) return formats;
    const Result<planner::Allowed> allowed = ParseAllowed(allowed_);
    if (!allowed) return allowed.error();
    question->allowed = *allowed;
    if (Status constraints = AskConstraints(question); !constraints) return constraints;
    question->clock = Now;
    const bool is_known = std::ssize(unlike_memory_) == question->num_ranks;
    const bool uses_known = !memory_.is_given() && is_known;
    return AnswerByProfile(profile, uses_known ? MemoryOfRanks{.bytes = unlike_memory_} : memory_,
                           step_tokens(), *question);
  }

  Status CheckDisaggregation(const planner::PlanQuestion& question) const {
    if (!disaggregation_.disaggregate) return {};
    if (question.spec.has_encoder()) {
      return Error{
          "the experts of an encoder-decoder model cannot be on other ranks than its attention: "
          "leave --disaggregate out"};
    }
    if (question.num_ranks > 1) return {};
    return Error{
        "--disaggregate puts attention and experts on different ranks, and there is 1: say with "
        "--ranks how many there are"};
  }

  Status AskFormats(planner::PlanQuestion* question) const {
    question->formats = engine::AutomaticFormats();
    if (!weights_.empty() && weights_ != "auto") question->formats = {weights_};
    question->int8_kv = kv_cache_ == kernels::KvFormat::kInt8;
    for (const std::string& format : question->formats) {
      const auto goes_together =
          engine::ResolveFormats({.kv = kv_cache_}, *kernels::WeightFormatFromName(format));
      if (!goes_together) return goes_together.error();
    }
    if (!weights::IsPackedDirectory(model_)) return {};
    const Result<weights::PackedDirectory> packed = weights::OpenPackedDirectory(model_);
    if (!packed) return packed.error();
    const std::string format(kernels::Name(packed->formats.matrices));
    if (!weights_.empty() && weights_ != "auto" && weights_ != format) {
      return Error{
          fmt::format("the weights of {} are packed as {}: leave --weights out", model_, format)};
    }
    question->formats = {format};
    question->constraints.whole_matrices = true;
    return {};
  }

  Status AskConstraints(planner::PlanQuestion* question) const {
    planner::Constraints& constraints = question->constraints;
    constraints.num_threads = num_threads_;
    constraints.keeps_step_tokens = step_tokens_.has_value();
    constraints.micro_batches = micro_batches_;
    constraints.decode_experts = decode_experts_;
    constraints.disaggregates = disaggregation_.disaggregate;
    if (disaggregation_.strategy) {
      constraints.strategy = *plan::DisaggregatedStrategyFromName(*disaggregation_.strategy);
    }
    if (disaggregation_.order) constraints.order = *plan::OrderFromName(*disaggregation_.order);
    if (layout_) {
      const Result<strategy::Layout> layout = LayoutOf(*layout_, disaggregation_.disaggregate);
      if (!layout) return layout.error().At("--layout");
      constraints.layout = *layout;
    }
    if (wire_) constraints.wire = *plan::WireFromName(*wire_);
    if (pipeline_ && *pipeline_ != "auto") {
      plan::Plan parsed;
      if (Status status = plan::ParsePipeline(*pipeline_, &parsed); !status) return status;
      constraints.pipeline = parsed.pipeline;
    }
    question->passes_off = passes_off_;
    if (present_path_.empty()) return {};
    Result<plan::Plan> present =
        plan::ReadPlan(present_path_, plan::DefaultLayout(question->num_ranks));
    if (!present) return present.error();
    const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(model_);
    if (!config) return config.error();
    const Status meant =
        plan::CheckMadeFor(*present, plan::ModelHash(config->json), question->num_ranks);
    if (!meant) return meant.error().At(present_path_);
    question->present = DecisionsOf(*std::move(present), step_tokens());
    return {};
  }

  Status Write(const PlanReport& report, planner::PlanSearch& search) const {
    std::string text = ToText(report);
    if (explain_) text += ExplainSearch(report);
    const auto results = {json_path_, out_path_, svg_path_, html_path_};
    if (std::ranges::find(results, "-") == results.end()) {
      if (Status told = ShowOutput(Printable(text, "\n\t")); !told) return told;
    }
    if (Status written = WriteJson(out_path_, PlanFile(report)); !written) return written;
    const auto& figures = report.chosen().figures;
    if (!out_path_.empty() && figures && figures->batch > plan::kMostSequences) {
      PrintNote(
          "note: what is predicted is of {} sequences together, and commands run {} at most\n",
          figures->batch, plan::kMostSequences);
    }
    if (!svg_path_.empty() || !html_path_.empty()) {
      const auto draw = [&](strategy::Phase phase) {
        return PictureOf(search, report.chosen(), phase, report.profile);
      };
      Result<drawing::TracedStep> prefill = draw(strategy::Phase::kPrefill);
      if (!prefill) return prefill.error();
      if (!svg_path_.empty()) {
        if (Status drawn = WriteText(svg_path_, GanttSvg(*prefill)); !drawn) return drawn;
      }
      const Result<drawing::TracedStep> decode = draw(strategy::Phase::kDecode);
      if (!decode) return decode.error();
      if (!html_path_.empty()) {
        const std::string page = PlanPage(report, {*prefill, *decode});
        if (Status written = WriteText(html_path_, page); !written) return written;
      }
    }
    return WriteJson(json_path_, ToJson(report));
  }

  std::string model_;
  std::string profile_;
  std::optional<int> num_ranks_;
  WorkloadOptions workload_options_;
  std::vector<std::string> allowed_;
  MemoryOfRanks memory_;
  std::optional<double> disk_rate_;      // GB/s
  std::vector<uint64_t> unlike_memory_;  // of the ranks that were started, where they differ
  std::string out_path_;
  std::string svg_path_;
  std::string html_path_;
  std::optional<double> verify_seconds_;
  bool explain_ = false;
  std::string json_path_;
  std::optional<int> step_tokens_;
  std::string weights_;
  std::optional<kernels::KvFormat> kv_cache_;
  std::optional<int> num_threads_;
  std::optional<std::string> layout_;
  DisaggregationOptions disaggregation_;
  std::optional<std::string> decode_experts_;
  std::optional<std::string> pipeline_;
  std::optional<int> micro_batches_;
  std::optional<std::string> wire_;
  std::string present_path_;
  std::vector<std::string> passes_off_;

  planner::Workload workload_;
};

}  // namespace

std::unique_ptr<Command> MakePlan() { return std::make_unique<MakePlanCommand>(); }

}  // namespace convene::cli
