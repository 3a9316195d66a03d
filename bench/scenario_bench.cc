// Times steps of an invented model under many plans in turn, within one run of all ranks:
//   mpirun -n 2 build/release/scenario_bench --layout attention=dp2,experts=ep2
//       --plan base --plan pipeline=8:experts --tokens 512 --json out.json
// A plan's words: scenario_variant.h. What the figures mean: scenario_figures.h, bench/README.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/environment.h"
#include "base/median.h"
#include "bench/results_file.h"
#include "bench/scenario_figures.h"
#include "bench/scenario_variant.h"
#include "bench/slowed_device.h"
#include "bench/step_prediction.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_pipeline.h"
#include "evaluate/invented_model.h"
#include "evaluate/known_costs.h"
#include "evaluate/reference_kernel.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "plan/plan.h"
#include "planner/disaggregated_lines.h"
#include "planner/expert_cuts.h"
#include "planner/predict_step.h"
#include "planner/step_turns.h"
#include "planner/workload.h"
#include "planner/workload_steps.h"
#include "runtime/recorded_step.h"
#include "runtime/transformer.h"

namespace convene::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr kernels::WeightFormat kWeights = kernels::WeightFormat::kBf16;

struct Options {
  evaluate::ModelShape shape;
  std::string layout = "attention=dp2,experts=ep2";
  std::vector<std::string> plans;
  std::vector<int> tokens = {512};  // of each group of ranks
  int sequence = 512;               // tokens of a prompt, at most
  std::vector<double> skews = {-1};
  int num_experts_skew = 1;
  int repeats = 5;
  int threads = 1;
  double slow_down = 1;  // operators take so many times as long (slowed_device.h)
  bool predict = false;
  std::string costs_path;  // of slowed ranks
  std::string json_path;
};

class Bench {
 public:
  Bench(const Options& options, comm::Group& group, hardware::ThreadPool& pool,
        const kernels::KernelSet& kernels)
      : options_(options), group_(group), pool_(pool), kernels_(kernels), device_(MakeDevice()) {}

  Status Run() {
    std::vector<Variant> variants;
    for (const std::string& text : options_.plans) {
      const Result<Variant> variant = ParseVariant(text, options_.layout);
      if (!variant) return variant.error();
      if (Status fits = plan::CheckRanks(variant->plan.layout, group_.size()); !fits) return fits;
      variants.push_back(*variant);
    }
    if (Status opened = OnRank0([&] { return CheckResultsFile(options_.json_path); }); !opened) {
      return opened;
    }
    for (const int tokens : options_.tokens) {
      if (Status point = RunPoint(variants, tokens); !point) return point;
      // After each point, so that what fails later does not cost it.
      const Status written =
          OnRank0([&] { return WriteResultsFile(options_.json_path, points_.dump(1) + "\n"); });
      if (!written) return written;
    }
    return {};
  }

 private:
  std::unique_ptr<device::Device> MakeDevice() const {
    return MakeSlowedDevice(device::MakeCpuDevice(kernels_, pool_), options_.slow_down);
  }

  // Collective: what rank 0 says of something that it alone does.
  template <typename Do>
  Status OnRank0(Do&& something) {
    return comm::AgreeOnSuccess(group_, group_.rank() == 0 ? something() : Status());
  }

  Result<evaluate::InventedModel*> ModelOf(const strategy::Layout& layout) {
    const std::string key = plan::ToText(layout);
    if (const auto found = models_.find(key); found != models_.end()) return found->second.get();
    auto model = evaluate::InventedModel::Create(evaluate::InventSpec(options_.shape), {}, layout,
                                                 group_.rank(), ledger_);
    const Status mine = model ? Status() : Status(model.error());
    if (const Status all = comm::AgreeOnSuccess(group_, mine); !all) return all.error();
    return models_.emplace(key, *std::move(model)).first->second.get();
  }

  Result<runtime::Transformer> Transformer(evaluate::InventedModel& model, const Variant& variant,
                                           int tokens, double skew) {
    runtime::TransformerOptions options{
        .max_step_tokens = tokens,
        .num_kv_blocks = tokens / device::kKvBlockTokens + NumSequences(tokens) + 1,
        .context = options_.sequence};
    options.dense_from_rows = variant.plan.gemm == plan::GemmChoice::kDense ? 1 : 0;
    options.parallel = {
        .roles = variant.plan.layout,
        .pipeline = variant.plan.pipeline,
        .wire = engine::WireFormatOf(variant.plan.wire, group_.size()),
        .returns_fp8 = engine::ReturnsFp8(variant.plan.wire),
        .comm_budget = variant.plan.comm_budget,
        .experiment = {.router = {.skew = skew, .num_experts = options_.num_experts_skew},
                       .capacity_factor = variant.capacity_factor},
        .group = group_.size() > 1 ? &group_ : nullptr,
        .whole_spec = &model.whole_spec()};
    options.parallel.record = true;
    if (!variant.plan.lines.empty()) {
      options.parallel.pipeline_of =
          [solved = planner::StepTurns(variant.plan.lines, variant.plan.pipeline)](
              const strategy::StepLoad& load) mutable { return solved.For(load); };
    }
    Result<runtime::Transformer> transformer =
        runtime::Transformer::Create(model.weights(), *device_, options, ledger_);
    const Status mine = transformer ? Status() : Status(transformer.error());
    if (const Status all = comm::AgreeOnSuccess(group_, mine); !all) return all.error();
    return transformer;
  }

  // What the planner says of a plan, by costs of other models, after its choice where that is asked
  // for.
  Status Predict(evaluate::InventedModel& model, int tokens, double skew, Variant& variant) {
    if (!Predicts()) return {};
    const Result<const engine::KnownCosts*> known = CostsOf(variant.plan);
    if (!known) return known.error();
    if (group_.rank() == 0) {
      const cost::StepCosts& costs = (*known)->ranks;
      if (variant.plan.auto_pipeline || variant.fit_cuts) Choose(model, tokens, costs, variant);
      const Status predicted = PredictStep(model, tokens, skew, costs, variant);
      if (!predicted) return predicted;
    }
    // Rank 0 alone has costs.
    const std::string text = plan::ToJson(variant.plan).dump();
    const auto bytes = std::as_bytes(std::span(text));
    std::vector<std::byte> told(bytes.begin(), bytes.end());
    group_.Broadcast(0, &told, "telling the plan");
    const Result<plan::Plan> plan = plan::PlanFromJson(nlohmann::json::parse(
        std::string(reinterpret_cast<const char*>(told.data()), told.size())));
    if (!plan) return plan.error();
    variant.plan = *plan;
    return {};
  }

  strategy::ElementBytes BytesOf(evaluate::InventedModel& model, const Variant& variant) const {
    return runtime::Transformer::BytesOf(
        model.whole_spec(), runtime::DefaultFormats(model.weights().formats().matrices),
        engine::WireFormatOf(variant.plan.wire, group_.size()),
        engine::ReturnsFp8(variant.plan.wire));
  }

  std::vector<strategy::SequenceRows> SequencesOf(int of_group) const {
    std::vector<strategy::SequenceRows> sequences;
    for (int first = 0; first < of_group; first += options_.sequence) {
      const int count = std::min(options_.sequence, of_group - first);
      sequences.push_back({.num_tokens = count, .num_wanted = 1, .prompt_length = count});
    }
    return sequences;
  }

  // On rank 0: the whole step, as the search of plans prices it. Rows that an expert's capacity
  // adds or drops have no price.
  Status PredictStep(evaluate::InventedModel& model, int tokens, double skew,
                     const cost::StepCosts& costs, Variant& variant) const {
    if (variant.capacity_factor > 0) return {};
    const planner::MeasuredPricer pricer(costs);
    const strategy::Roles roles = variant.plan.layout;
    planner::StepQuestion question{.spec = model.whole_spec()};
    question.shares = planner::SharesOf(
        {.skew = skew, .num_experts_skew = options_.num_experts_skew}, model.whole_spec());
    question.options.roles = roles;
    question.options.pipeline = variant.plan.pipeline;
    question.options.bytes = BytesOf(model, variant);
    question.groups.assign(static_cast<size_t>(roles.num_groups()),
                           SequencesOf(tokens * roles.attention_parts()));
    if (variant.is_solved) {
      Status solved = SolveLines(question, pricer, variant);
      if (!solved) return solved;
      question.options.pipeline = planner::StepTurns(variant.plan.lines, variant.plan.pipeline)
                                      .For(planner::LoadOf(question.groups));
      variant.name += fmt::format(" ({} x {})", question.options.pipeline.micro_batches,
                                  question.options.pipeline.chunks);
    }
    const Result<StepPrediction> predicted = PredictStepOfCosts(question, costs);
    if (!predicted) return predicted.error();
    variant.predicted = *predicted;
    return {};
  }

  // Lines of the steps with the fewest and the most tokens, by which each step is solved.
  Status SolveLines(const planner::StepQuestion& step, const planner::StepPricer& pricer,
                    Variant& variant) const {
    const auto [fewest, most] = std::ranges::minmax(options_.tokens);
    for (const int tokens : fewest == most ? std::vector{most} : std::vector{fewest, most}) {
      const strategy::Roles& roles = step.options.roles;
      const Result<planner::FittedLines> fitted =
          planner::FitLinesByKeys({.spec = step.spec,
                                   .roles = roles,
                                   .bytes = step.options.bytes,
                                   .sequences = SequencesOf(tokens * roles.attention_parts())},
                                  pricer);
      if (!fitted) return fitted.error();
      variant.plan.lines.push_back(fitted->lines);
    }
    return {};
  }

  // On rank 0: chunks and where they end, by the price of a layer that has all rows. The same
  // errors are those of all plans, so that other ranks need not be told.
  void Choose(evaluate::InventedModel& model, int tokens, const cost::StepCosts& costs,
              Variant& variant) const {
    const planner::PipelineQuestion question{
        .spec = model.whole_spec(),
        .roles = variant.plan.layout,
        .bytes = BytesOf(model, variant),
        .costs = costs,
        .tokens_per_group = tokens * variant.plan.layout.attention_tp,
        .micro_batches = variant.plan.pipeline.micro_batches};
    if (variant.plan.auto_pipeline) {
      const Result<planner::PipelineChoice> choice = planner::ChoosePipeline(question);
      CHECK(choice.ok(), "{}", choice.error().message);
      fmt::print("{}\n", planner::Describe(*choice, 0));
      variant.plan.pipeline = choice->chosen.pipeline;
      variant.plan.auto_pipeline = false;
      variant.name += fmt::format(" ({})", planner::Words(variant.plan.pipeline));
    }
    if (!variant.fit_cuts) return;
    variant.plan.pipeline = planner::FitCuts(question, variant.plan.pipeline).pipeline;
    for (const double cut : variant.plan.pipeline.cuts) variant.name += fmt::format(" {:.3g}", cut);
  }

  // By layout, measured once.
  Result<const engine::KnownCosts*> CostsOf(const plan::Plan& plan) {
    const std::string key = plan::ToText(plan.layout);
    if (const auto found = costs_.find(key); found != costs_.end()) return &found->second;
    const comm::WireFormat wire = engine::WireFormatOf(plan.wire, group_.size());
    evaluate::KnownCostsOptions how{.profile_path = hardware::ProfilePath()};
    if (options_.slow_down > 1) {
      how.profile_path = options_.costs_path;
      how.seconds *= options_.slow_down;
      how.make_device = [this] { return MakeDevice(); };
    }
    Result<engine::KnownCosts> known = evaluate::KnownStepCosts({.group = group_,
                                                                 .pool = pool_,
                                                                 .kernels = kernels_,
                                                                 .ledger = ledger_,
                                                                 .weights = kWeights,
                                                                 .wire = wire},
                                                                how);
    if (!known) return known.error();
    if (group_.rank() == 0) fmt::print("{}\n", known->source);
    return &costs_.emplace(key, *std::move(known)).first->second;
  }

  int NumSequences(int tokens) const {
    return (tokens + options_.sequence - 1) / options_.sequence;
  }

  // One plan at one skew, and its steps of all rounds.
  struct Series {
    double skew = 0;
    Variant variant;
    runtime::Transformer transformer;
    std::vector<runtime::RecordedStep> steps = {};
  };

  bool Predicts() const { return options_.predict && group_.size() > 1; }

  // All skews and variants in turn, again and again: in a round they read the same tokens, and
  // after every second round they take turns in the other order, so that odd and even rounds have
  // both.
  Status RunPoint(const std::vector<Variant>& variants, int tokens) {
    std::vector<Series> all;
    for (const double skew : options_.skews) {
      for (Variant variant : variants) {
        const Result<evaluate::InventedModel*> model = ModelOf(variant.plan.layout);
        if (!model) return model.error();
        if (Status predicted = Predict(**model, tokens, skew, variant); !predicted)
          return predicted;
        Result<runtime::Transformer> transformer = Transformer(**model, variant, tokens, skew);
        if (!transformer) return transformer.error();
        all.push_back({skew, std::move(variant), *std::move(transformer)});
        all.back().transformer.ObserveSteps(
            [this](const runtime::RecordedStep& step) { last_step_ = step; });
      }
    }
    std::optional<evaluate::ReferenceKernel> reference;
    if (Predicts()) {
      auto made = evaluate::ReferenceKernel::Create(kernels_, pool_,
                                                    runtime::DefaultFormats(kWeights), ledger_);
      const Status mine = made ? Status() : Status(made.error());
      if (const Status had = comm::AgreeOnSuccess(group_, mine); !had) return had;
      reference.emplace(*std::move(made));
    }
    std::vector<cost::ReferenceSpeed> speeds;  // by round
    std::vector<size_t> turns(all.size());
    std::iota(turns.begin(), turns.end(), size_t{0});
    for (int round = -1; round < options_.repeats; ++round) {
      if (round > 0 && round % 2 == 0) std::ranges::reverse(turns);
      const uint64_t state_of_round = state_;
      std::vector<double> reads;
      std::vector<double> dots;
      for (const size_t index : turns) {
        Series& series = all[index];
        if (reference) {
          const cost::ReferenceSpeed speed = reference->Measure(group_);
          reads.push_back(speed.read_bytes_per_second);
          dots.push_back(speed.dot_operations_per_second);
        }
        state_ = state_of_round;
        RunStep(series.transformer, series.variant.plan.layout, tokens);
        if (round >= 0 && group_.rank() == 0) series.steps.push_back(last_step_);
      }
      if (round >= 0 && reference) speeds.push_back({Median(reads), Median(dots)});
    }
    // Before rank 0 tells the end while others begin with the next point.
    for (Series& series : all) {
      if (group_.rank() == 0) {
        series.transformer.EndSteps();
      } else {
        series.transformer.FollowSteps();
      }
    }
    if (group_.rank() != 0) return {};
    for (size_t i = 0; i < all.size(); ++i) {
      Report(all[i], tokens,
             {.steps = all[i].steps,
              .first = all[i - i % variants.size()].steps,
              .flat = all[i % variants.size()].steps},
             speeds);
    }
    return {};
  }

  void RunStep(runtime::Transformer& transformer, const strategy::Layout& layout, int tokens) {
    if (group_.rank() == 0) {
      std::vector<std::vector<int32_t>> texts;
      std::vector<std::vector<int32_t>> blocks;
      std::vector<device::SequenceStep> step;
      for (int group = 0; group < layout.attention_dp; ++group) {
        // A group gets as many tokens for each rank of it.
        const int of_group = tokens * layout.attention_tp;
        int32_t next_block = 0;
        for (int first = 0; first < of_group; first += options_.sequence) {
          const int count = std::min(options_.sequence, of_group - first);
          auto& text = texts.emplace_back(static_cast<size_t>(count));
          for (int32_t& token : text) token = static_cast<int32_t>(Random() % 1024);
          auto& own = blocks.emplace_back(
              static_cast<size_t>((count + device::kKvBlockTokens - 1) / device::kKvBlockTokens));
          std::iota(own.begin(), own.end(), next_block);
          next_block += static_cast<int32_t>(own.size());
          step.push_back({.tokens = text,
                          .blocks = own,
                          .prompt_length = count,
                          .first_logits_token = count - 1,
                          .group = group});
        }
      }
      const Status done = transformer.Forward(step, [](int, int, std::span<const float>) {});
      CHECK(done.ok(), "{}", done.error().message);
    } else {
      transformer.FollowStep();
    }
  }

  uint64_t Random() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

  // `speeds`: of the reference kernels in each round, where something was predicted.
  void Report(const Series& series, int tokens, const Repeated& repeated,
              std::span<const cost::ReferenceSpeed> speeds) {
    const Variant& variant = series.variant;
    Json point = {{"plan", variant.name},      {"layout", plan::ToText(variant.plan.layout)},
                  {"tokens_per_rank", tokens}, {"experts", options_.shape.experts},
                  {"skew", series.skew},       {"predicted", nullptr}};
    if (variant.predicted) point["predicted"] = ToJson(*variant.predicted);
    for (const cost::ReferenceSpeed& speed : speeds) {
      point["read_bytes_per_s"].push_back(speed.read_bytes_per_second);
      point["dot_operations_per_s"].push_back(speed.dot_operations_per_second);
    }
    point.update(FiguresOf(repeated));
    for (const runtime::RecordedStep& step : series.steps) {
      point["seconds"].push_back(step.timeline.seconds());
    }
    const auto of = [&](const char* key) { return point[key].get<double>(); };
    const auto rounds = [&](const char* which) {
      const Json& ratios = point[which];
      return fmt::format("{:.2f} x, {:4.1f} % waiting ({:2} rounds)",
                         ratios["speedup"].get<double>(),
                         100 * ratios["waiting_share"].get<double>(), ratios["rounds"].get<int>());
    };
    fmt::print("{:44} {:6} tokens/rank  skew {:4.1f}  {:7.1f} ms ({:.1f} - {:.1f})  {}; even {}",
               variant.name, tokens, series.skew, of("median_s") * 1e3, of("least_s") * 1e3,
               of("most_s") * 1e3, rounds("all_rounds"), rounds("even_rounds"));
    if (of("replayed_s") > 0) fmt::print(", replayed {:.1f} ms", of("replayed_s") * 1e3);
    if (variant.predicted) fmt::print(", predicted {:.1f} ms", variant.predicted->seconds * 1e3);
    fmt::print("\n");
    std::fflush(stdout);
    points_.push_back(std::move(point));
  }

  const Options& options_;
  comm::Group& group_;
  hardware::ThreadPool& pool_;
  const kernels::KernelSet& kernels_;
  std::unique_ptr<device::Device> device_;
  memory::Ledger ledger_;  // without a limit
  std::map<std::string, std::unique_ptr<evaluate::InventedModel>> models_;
  std::map<std::string, engine::KnownCosts> costs_;  // by layout
  Json points_ = Json::array();
  uint64_t state_ = 88172645463325252;
  runtime::RecordedStep last_step_;
};

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--hidden", options.shape.hidden);
  app.add_option("--heads", options.shape.heads);
  app.add_option("--layers", options.shape.layers);
  app.add_option("--experts", options.shape.experts);
  app.add_option("--top-k", options.shape.top_k);
  app.add_option("--intermediate", options.shape.intermediate);
  app.add_option("--shared", options.shape.shared_intermediate);
  app.add_flag("!--relu", options.shape.gated, "Experts of two matrices with ReLU");
  app.add_option("--layout", options.layout);
  app.add_option("--plan", options.plans)->required();
  app.add_option("--tokens", options.tokens)->delimiter(',');
  app.add_option("--sequence", options.sequence);
  app.add_option("--skew", options.skews)->delimiter(',');
  app.add_option("--num-experts-skew", options.num_experts_skew);
  app.add_option("--repeat", options.repeats);
  app.add_option("--threads", options.threads);
  app.add_option("--slow-down", options.slow_down,
                 "Operators take so many times the processor time of one thread, waiting for the "
                 "rest: ranks of several machines on one that has not the cores for them")
      ->check(CLI::Range(1.0, 100.0));
  app.add_flag("--predict", options.predict,
               "Say what the planner expects, by costs of other models");
  app.add_option(
      "--costs", options.costs_path,
      "With --slow-down and --predict: a profile of such ranks; one that is not there is "
      "measured and written");
  app.add_option("--json", options.json_path);
}

int Main(int argc, char** argv) {
  CLI::App app("Times steps of an invented model under many plans");
  Options options;
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  if (options.predict && options.slow_down > 1 && options.costs_path.empty()) {
    fmt::print(stderr, "scenario_bench: --predict of slowed ranks needs --costs FILE\n");
    return 1;
  }
  Result<std::unique_ptr<comm::Group>> group = comm::Connect();
  const auto fail = [](const Error& error) {
    fmt::print(stderr, "scenario_bench: {}\n", error.message);
    return 1;
  };
  if (!group) return fail(group.error());
  const auto kernels = kernels::ChooseKernels();
  if (!kernels) return fail(kernels.error());
  Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.threads);
  if (!cpus) return fail(cpus.error());
  hardware::ThreadPool pool(*std::move(cpus));
  const Status status = Bench(options, **group, pool, **kernels).Run();
  return status ? 0 : fail(status.error());
}

}  // namespace
}  // namespace convene::bench

int main(int argc, char** argv) { return convene::bench::Main(argc, argv); }
