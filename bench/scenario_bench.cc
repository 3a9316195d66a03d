// Times steps of an invented model under many plans in turn, within one run of all ranks:
//   mpirun -n 2 build/release/scenario_bench --layout attention=dp2,experts=ep2
//       --plan base --plan pipeline=8:experts --tokens 512 --json out.json
// A plan is words with commas: base (no overlap), pipeline=N[:experts] or auto (with --predict),
// wire=fp8, gemm=dense, budget=N, capacity=F, layout=... with '+' in place of ','. What the figures
// mean: bench/README.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/environment.h"
#include "bench/invented_model.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "cost/prices.h"
#include "engine/choose_pipeline.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "plan/plan.h"
#include "runtime/recorded_step.h"
#include "runtime/transformer.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelShape shape;
  std::string layout = "attention=dp2,experts=ep2";
  std::vector<std::string> plans;
  std::vector<int> tokens = {512};  // of each group of ranks
  int sequence = 512;               // tokens of a prompt, at most
  std::vector<double> skews = {-1};
  int num_experts_skew = 1;
  int repeats = 5;
  int threads = 1;
  bool predict = false;
  std::string json_path;
};

struct Variant {
  std::string name;
  plan::Plan plan;
  double capacity_factor = 0;
  double predicted_seconds = 0;  // 0: not asked for
};

Result<Variant> ParseVariant(const std::string& text, const std::string& layout_text) {
  Variant variant{.name = text, .plan = {}};
  std::string layout = layout_text;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const std::string value = word.substr(std::min(word.size(), word.find('=') + 1));
    if (word == "base") {
      variant.plan.pipeline.overlap = false;
    } else if (word.starts_with("pipeline=")) {
      if (Status parsed = plan::ParsePipeline(value, &variant.plan); !parsed) return parsed.error();
    } else if (word.starts_with("wire=")) {
      const auto wire = plan::WireFromName(value);
      if (!wire) return wire.error();
      variant.plan.wire = *wire;
    } else if (word.starts_with("gemm=")) {
      const auto gemm = plan::GemmFromName(value);
      if (!gemm) return gemm.error();
      variant.plan.gemm = *gemm;
    } else if (word.starts_with("budget=")) {
      variant.plan.comm_budget = std::atoi(value.c_str());
    } else if (word.starts_with("capacity=")) {
      variant.capacity_factor = std::atof(value.c_str());
    } else if (word.starts_with("layout=")) {
      layout = word.substr(7);
      std::replace(layout.begin(), layout.end(), '+', ',');
    } else {
      return Error{fmt::format("a plan has no word {}", word)};
    }
  }
  const auto parsed = plan::ParseLayout(layout);
  if (!parsed) return parsed.error();
  variant.plan.layout = *parsed;
  return variant;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Seconds of each kind of task on each rank, of one step; and of the whole step.
struct Measured {
  double seconds = 0;
  std::vector<std::vector<double>> by_kind;  // [rank][kind]
  runtime::RecordedStep step;                // rank 0
};

class Bench {
 public:
  Bench(const Options& options, comm::Group& group, hardware::ThreadPool& pool,
        const kernels::KernelSet& kernels)
      : options_(options), group_(group), pool_(pool), kernels_(kernels) {}

  Status Run() {
    std::vector<Variant> variants;
    for (const std::string& text : options_.plans) {
      const Result<Variant> variant = ParseVariant(text, options_.layout);
      if (!variant) return variant.error();
      if (Status fits = plan::CheckRanks(variant->plan.layout, group_.size()); !fits) return fits;
      variants.push_back(*variant);
    }
    for (const int tokens : options_.tokens) {
      for (const double skew : options_.skews) {
        if (Status point = RunPoint(variants, tokens, skew); !point) return point;
      }
    }
    if (group_.rank() == 0 && !options_.json_path.empty()) {
      std::ofstream(options_.json_path) << points_.dump(1) << "\n";
    }
    return {};
  }

 private:
  Result<const InventedModel*> ModelOf(const strategy::Layout& layout) {
    const std::string key = plan::ToText(layout);
    if (const auto found = models_.find(key); found != models_.end()) return found->second.get();
    auto model = InventedModel::Create(options_.shape, layout, group_.rank());
    const Status mine = model ? Status() : Status(model.error());
    if (const Status all = comm::AgreeOnSuccess(group_, mine); !all) return all.error();
    return models_.emplace(key, *std::move(model)).first->second.get();
  }

  Result<runtime::Transformer> Transformer(const InventedModel& model, const Variant& variant,
                                           int tokens, double skew) {
    runtime::TransformerOptions options{
        .max_step_tokens = tokens,
        .num_kv_blocks = tokens / runtime::kKvBlockTokens + NumSequences(tokens) + 1,
        .context = options_.sequence};
    options.dense_from_rows = variant.plan.gemm == plan::GemmChoice::kDense ? 1 : 0;
    options.parallel = {.layout = variant.plan.layout,
                        .pipeline = variant.plan.pipeline,
                        .wire = engine::WireFormatOf(variant.plan.wire),
                        .comm_budget = variant.plan.comm_budget,
                        .router = {.skew = skew, .num_experts = options_.num_experts_skew},
                        .capacity_factor = variant.capacity_factor,
                        .group = group_.size() > 1 ? &group_ : nullptr,
                        .whole_spec = &model.whole_spec()};
    options.parallel.record = true;
    Result<runtime::Transformer> transformer =
        runtime::Transformer::Create(model.weights(), kernels_, pool_, options);
    const Status mine = transformer ? Status() : Status(transformer.error());
    if (const Status all = comm::AgreeOnSuccess(group_, mine); !all) return all.error();
    return transformer;
  }

  // What the planner says of a plan, on rates measured once; and its choice, where it is asked for.
  Status Predict(const InventedModel& model, int tokens, Variant& variant) {
    if (!options_.predict || group_.size() == 1) return {};
    if (!rates_) {
      const Result<planner::StepRates> rates =
          engine::MeasureStepRates(group_, model.weights(), kernels_, pool_,
                                   runtime::DefaultFormats(model.weights().formats.matrices));
      if (!rates) return rates.error();
      rates_ = *rates;
      if (group_.rank() == 0) {
        fmt::print(
            "weights {:.1f} GB/s, {:.0f} GFLOP/s, {:.0f} rows per expert, link {:.1f} MB/s, "
            "exchange {:.0f} us, beside computing {:.0f} us and {:.2f} of a core\n",
            rates_->weight_bytes_per_second / 1e9, rates_->flops_per_second / 1e9,
            rates_->rows_per_expert, rates_->link_bytes_per_second / 1e6,
            rates_->link_latency * 1e6, rates_->link_latency_beside * 1e6,
            rates_->link_core_seconds_per_byte * rates_->link_bytes_per_second);
      }
    }
    const planner::PipelineQuestion question{
        .spec = model.whole_spec(),
        .layout = variant.plan.layout,
        .bytes =
            runtime::Transformer::BytesOf(runtime::DefaultFormats(model.weights().formats.matrices),
                                          engine::WireFormatOf(variant.plan.wire)),
        .rates = *rates_,
        .tokens_per_rank = double(tokens)};
    if (variant.plan.auto_pipeline) {
      const planner::PipelineChoice choice = planner::ChoosePipeline(question);
      variant.plan.pipeline = choice.pipeline;
      variant.name +=
          fmt::format(" ({}{}; closed form {})", choice.pipeline.chunks,
                      choice.pipeline.cut == strategy::ChunkCut::kExperts ? ":experts" : "",
                      choice.closed_form.chunks);
    }
    variant.predicted_seconds =
        planner::PredictLayerSeconds(question, variant.plan.pipeline, tokens) *
        (model.whole_spec().num_layers() - 1);  // the last one goes on with few rows
    return {};
  }

  int NumSequences(int tokens) const {
    return (tokens + options_.sequence - 1) / options_.sequence;
  }

  // All variants in turn, again and again.
  Status RunPoint(std::vector<Variant> variants, int tokens, double skew) {
    std::vector<runtime::Transformer> transformers;
    for (Variant& variant : variants) {
      const Result<const InventedModel*> model = ModelOf(variant.plan.layout);
      if (!model) return model.error();
      if (Status predicted = Predict(**model, tokens, variant); !predicted) return predicted;
      Result<runtime::Transformer> transformer = Transformer(**model, variant, tokens, skew);
      if (!transformer) return transformer.error();
      transformers.push_back(*std::move(transformer));
      transformers.back().ObserveSteps(
          [this](const runtime::RecordedStep& step) { last_step_ = step; });
    }
    std::vector<std::vector<Measured>> measured(variants.size());
    for (int round = -1; round < options_.repeats; ++round) {
      for (size_t i = 0; i < variants.size(); ++i) {
        Measured one = RunStep(transformers[i], variants[i].plan.layout, tokens);
        if (round >= 0) measured[i].push_back(std::move(one));
      }
    }
    // Before rank 0 tells the end while others begin with the next point.
    for (runtime::Transformer& transformer : transformers) {
      if (group_.rank() == 0) {
        transformer.EndSteps();
      } else {
        transformer.FollowSteps();
      }
    }
    for (size_t i = 0; i < variants.size(); ++i)
      Report(variants[i], tokens, skew, measured[i], measured[0]);
    return {};
  }

  Measured RunStep(runtime::Transformer& transformer, const strategy::Layout& layout, int tokens) {
    Measured measured;
    if (group_.rank() == 0) {
      std::vector<std::vector<int32_t>> texts;
      std::vector<std::vector<int32_t>> blocks;
      std::vector<runtime::SequenceStep> step;
      for (int group = 0; group < layout.attention_dp; ++group) {
        // A group gets as many tokens for each rank of it.
        const int of_group = tokens * layout.attention_tp;
        int32_t next_block = 0;
        for (int first = 0; first < of_group; first += options_.sequence) {
          const int count = std::min(options_.sequence, of_group - first);
          auto& text = texts.emplace_back(static_cast<size_t>(count));
          for (int32_t& token : text) token = static_cast<int32_t>(Random() % 1024);
          auto& own = blocks.emplace_back(
              static_cast<size_t>((count + runtime::kKvBlockTokens - 1) / runtime::kKvBlockTokens));
          std::iota(own.begin(), own.end(), next_block);
          next_block += static_cast<int32_t>(own.size());
          step.push_back({.tokens = text,
                          .blocks = own,
                          .prompt_length = count,
                          .first_logits_token = count - 1,
                          .group = group});
        }
      }
      transformer.Forward(step, [](int, int, std::span<const float>) {});
    } else {
      transformer.FollowStep();
    }
    if (group_.rank() != 0) return measured;
    measured.step = last_step_;
    measured.seconds = last_step_.timeline.seconds();
    const schedule::Schedule& schedule = *last_step_.schedule;
    measured.by_kind.assign(static_cast<size_t>(schedule.num_ranks),
                            std::vector<double>(schedule::kNumTaskKinds, 0.0));
    for (size_t id = 0; id < schedule.tasks.size(); ++id) {
      const schedule::Task& task = schedule.tasks[id];
      measured.by_kind[static_cast<size_t>(task.lane.rank)][static_cast<size_t>(task.kind)] +=
          last_step_.timeline.tasks[id].seconds();
    }
    return measured;
  }

  // What lanes, dependencies and waiting make of measured tasks: each step's tasks, as long as they
  // were, in the simulator. The median of those of all steps but the one that is held against it.
  static std::optional<schedule::Timeline> Simulate(const std::vector<Measured>& measured,
                                                    const Measured& median) {
    std::vector<schedule::Timeline> simulated;
    for (const Measured& one : measured) {
      if (&one != &median) simulated.push_back(Simulate(one.step));
    }
    if (simulated.empty()) return std::nullopt;
    std::sort(simulated.begin(), simulated.end(),
              [](const auto& a, const auto& b) { return a.seconds() < b.seconds(); });
    return simulated[simulated.size() / 2];
  }

  static schedule::Timeline Simulate(const runtime::RecordedStep& step) {
    const schedule::Schedule& schedule = *step.schedule;
    const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
    const auto num_activities = static_cast<size_t>(graph.num_activities());
    cost::Prices prices{.resources = {},
                        .fixed_seconds = std::vector<double>(num_activities),
                        .first_demand = std::vector<int32_t>(num_activities + 1, 0),
                        .demands = {}};
    for (int activity = 0; activity < graph.num_activities(); ++activity) {
      // An exchange takes from when its last rank came; waiting for that is none of its cost.
      double start = 0;
      double ends = 0;
      const std::span<const schedule::TaskId> tasks = graph.tasks_of(activity);
      for (const schedule::TaskId id : tasks) {
        const schedule::TaskTime& time = step.timeline.tasks[static_cast<size_t>(id)];
        start = std::max(start, time.start);
        ends += time.end;
      }
      prices.fixed_seconds[static_cast<size_t>(activity)] =
          std::max(0.0, ends / static_cast<double>(tasks.size()) - start);
    }
    return simulate::Simulate(schedule, graph, prices);
  }

  // Seconds by kind of task, the mean over ranks.
  static std::vector<double> ByKind(const schedule::Schedule& schedule,
                                    const schedule::Timeline& timeline) {
    std::vector<double> seconds(schedule::kNumTaskKinds, 0.0);
    for (size_t id = 0; id < schedule.tasks.size(); ++id) {
      seconds[static_cast<size_t>(schedule.tasks[id].kind)] +=
          timeline.tasks[id].seconds() / schedule.num_ranks;
    }
    return seconds;
  }

  uint64_t Random() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

  void Report(const Variant& variant, int tokens, double skew,
              const std::vector<Measured>& measured, const std::vector<Measured>& first) {
    if (group_.rank() != 0) return;
    // Round by round, since the machine's speed changes from one to the next.
    std::vector<double> speedups;
    for (size_t round = 0; round < measured.size(); ++round) {
      speedups.push_back(first[round].seconds / measured[round].seconds);
    }
    std::vector<double> seconds;
    for (const Measured& one : measured) seconds.push_back(one.seconds);
    Json sections;
    double busy = 0;
    for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
      std::vector<double> means;
      std::vector<double> deviations;
      std::vector<double> longest;
      for (const Measured& one : measured) {
        double sum = 0;
        double squares = 0;
        longest.push_back(0);
        const auto num_ranks = static_cast<double>(one.by_kind.size());
        for (const auto& rank : one.by_kind) {
          sum += rank[static_cast<size_t>(kind)];
          longest.back() = std::max(longest.back(), rank[static_cast<size_t>(kind)]);
        }
        const double mean = sum / num_ranks;
        for (const auto& rank : one.by_kind) {
          squares += std::pow(rank[static_cast<size_t>(kind)] - mean, 2);
        }
        means.push_back(mean);
        deviations.push_back(std::sqrt(squares / num_ranks));
      }
      if (Median(means) == 0) continue;
      const auto task = static_cast<schedule::TaskKind>(kind);
      sections[std::string(schedule::Name(task))] = {{"mean_s", Median(means)},
                                                     {"deviation_s", Median(deviations)},
                                                     {"longest_s", Median(longest)}};
      if (!schedule::IsCollective(task)) busy += Median(means);
    }
    const double median = Median(seconds);
    const auto& median_step = *std::find_if(measured.begin(), measured.end(),
                                            [&](const auto& one) { return one.seconds == median; });
    const std::optional<schedule::Timeline> simulated = Simulate(measured, median_step);
    Json task_errors;
    if (simulated) {
      const std::vector<double> was = ByKind(*median_step.step.schedule, median_step.step.timeline);
      const std::vector<double> should = ByKind(*median_step.step.schedule, *simulated);
      for (size_t kind = 0; kind < was.size(); ++kind) {
        if (was[kind] < 0.01 * median) continue;  // what hardly counts
        task_errors[std::string(schedule::Name(static_cast<schedule::TaskKind>(kind)))] =
            should[kind] / was[kind] - 1;
      }
    }
    const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
    points_.push_back({{"plan", variant.name},
                       {"layout", plan::ToText(variant.plan.layout)},
                       {"tokens_per_rank", tokens},
                       {"experts", options_.shape.experts},
                       {"skew", skew},
                       {"median_s", median},
                       {"speedup", Median(speedups)},
                       {"planned_s", variant.predicted_seconds},
                       {"predicted_s", simulated ? simulated->seconds() : 0},
                       {"task_errors", task_errors},
                       {"least_s", *least},
                       {"most_s", *most},
                       {"not_computing_share", 1 - busy / median},
                       {"sections", sections}});
    fmt::print(
        "{:44} {:6} tokens/rank  skew {:4.1f}  {:8.1f} ms ({:.1f} - {:.1f})  {:.2f} x  {:5.1f} % "
        "not "
        "computing{}\n",
        variant.name, tokens, skew, median * 1e3, *least * 1e3, *most * 1e3, Median(speedups),
        100 * (1 - busy / median),
        simulated ? fmt::format(", simulated {:.1f} ms", simulated->seconds() * 1e3) +
                        (variant.predicted_seconds > 0
                             ? fmt::format(", planned {:.1f} ms", variant.predicted_seconds * 1e3)
                             : "")
                  : "");
    std::fflush(stdout);
  }

  const Options& options_;
  comm::Group& group_;
  hardware::ThreadPool& pool_;
  const kernels::KernelSet& kernels_;
  std::map<std::string, std::unique_ptr<InventedModel>> models_;
  std::optional<planner::StepRates> rates_;
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
  app.add_flag("--predict", options.predict, "Measure rates and say what the planner expects");
  app.add_option("--json", options.json_path);
}

int Main(int argc, char** argv) {
  CLI::App app("Times steps of an invented model under many plans");
  Options options;
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
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
