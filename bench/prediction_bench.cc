// Tests predictions of step times: all of a grid are written to a file, with the profile's hash,
// before the first step runs; then the same points run, plans in turn. bench/README.md says how.
//   prediction_bench predict --profile P.json --model DIR ... --out predictions.jsonl
//   mpirun -n 2 prediction_bench run --predictions predictions.jsonl --out runs.jsonl
//   bench/prediction_table.py predictions.jsonl runs.jsonl
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/digest.h"
#include "base/environment.h"
#include "base/median.h"
#include "bench/prediction_grid.h"
#include "bench/scenario_variant.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_pipeline.h"
#include "engine/model_source.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/reference_kernel.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "planner/predict_step.h"
#include "runtime/transformer.h"
#include "weights/share.h"

namespace convene::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  GridOptions grid;
  std::string profile;
  std::string predictions;
  std::string out;
  int rounds = 5;
  int threads = 1;
};

// Lines of JSON objects. Error: a file that cannot be read, a line that is none.
Result<std::vector<nlohmann::json>> ReadLines(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{fmt::format("{} cannot be read", path)};
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return Error{fmt::format("{} has a line that is no object", path)};
    lines.push_back(std::move(json));
  }
  return lines;
}

Result<model::ModelSpec> SpecOf(const std::string& directory) {
  const Result<engine::ModelSource> source = engine::ModelSource::Open(directory);
  if (!source) return source.error();
  return source->spec();
}

Result<runtime::Formats> FormatsOf(const std::string& weights) {
  const auto format = kernels::WeightFormatFromName(weights);
  if (!format) return Error{fmt::format("{} is no format of weights", weights)};
  return runtime::DefaultFormats(*format);
}

Status Predict(const Options& options) {
  const Result<cost::MachineProfile> profile = evaluate::LoadMachineProfile(options.profile);
  if (!profile) return profile.error();
  const Result<std::vector<GridPoint>> grid = MakeGrid(options.grid);
  if (!grid) return grid.error();
  std::ifstream bytes(options.profile);
  std::stringstream text;
  text << bytes.rdbuf();
  const std::string content = text.str();
  const std::string hash = fmt::format("{:016x}", DigestOf(std::as_bytes(std::span(content))));
  std::ofstream out(options.out, std::ios::app);
  if (!out) return Error{fmt::format("{} cannot be written", options.out)};
  std::map<std::string, model::ModelSpec> specs;
  for (const GridPoint& point : *grid) {
    if (!specs.contains(point.model)) {
      const Result<model::ModelSpec> spec = SpecOf(point.model);
      if (!spec) return spec.error();
      specs.emplace(point.model, *spec);
    }
    const Result<Variant> variant = ParseVariant(point.plan, "");
    if (!variant) return variant.error();
    const Result<runtime::Formats> formats = FormatsOf(point.weights);
    if (!formats) return formats.error();
    const cost::StepCosts* costs =
        profile->CostsOf(point.num_ranks, options.threads, point.weights);
    if (costs == nullptr) {
      return Error{fmt::format("{} has no costs of {} ranks with {} threads and weights in {}",
                               options.profile, point.num_ranks, options.threads, point.weights)};
    }
    const strategy::Roles roles = variant->plan.layout;
    const planner::StepQuestion question{
        .spec = specs.at(point.model),
        .options = {.roles = roles,
                    .pipeline = variant->plan.pipeline,
                    .bytes = runtime::Transformer::BytesOf(
                        specs.at(point.model), *formats,
                        engine::WireFormatOf(variant->plan.wire, point.num_ranks),
                        engine::ReturnsFp8(variant->plan.wire))},
        .groups = evaluate::RowsOf(point.step, roles)};
    const auto predict = [&](const cost::MachineState& state) {
      return planner::PredictStep(question, planner::MeasuredPricer(*costs, state));
    };
    const Result<planner::PredictedStep> predicted = predict({});
    if (!predicted) return predicted.error();
    // What a slower memory or slower cores add: the drift of a round is applied to these.
    const Result<planner::PredictedStep> memory = predict({.memory = 1.1});
    const Result<planner::PredictedStep> compute = predict({.compute = 1.1});
    CHECK(memory && compute, "the same step");
    Json line = ToJson(point);
    line["profile"] = hash;
    line["predicted_s"] = predicted->seconds;
    const cost::Interval interval =
        cost::IntervalOf(planner::OutlineOf(*predicted), cost::ErrorsOf(*costs));
    line["low_s"] = interval.low;
    line["high_s"] = interval.high;
    line["memory_s"] = (memory->seconds - predicted->seconds) / 0.1;
    line["compute_s"] = (compute->seconds - predicted->seconds) / 0.1;
    line["extrapolated"] = predicted->extrapolated_share;
    line["read_bytes_per_s"] = costs->reference.read_bytes_per_second;
    line["dot_operations_per_s"] = costs->reference.dot_operations_per_second;
    out << line.dump() << "\n";
  }
  fmt::print("{} predictions from profile {} in {}\n", grid->size(), hash, options.out);
  return out.good() ? Status() : Error{fmt::format("{} could not be written", options.out)};
}

class Run {
 public:
  Run(const Options& options, comm::Group& group, hardware::ThreadPool& pool,
      const kernels::KernelSet& kernels)
      : options_(options),
        group_(group),
        pool_(pool),
        kernels_(kernels),
        device_(device::MakeCpuDevice(kernels, pool)) {}

  Status All() {
    Result<std::vector<nlohmann::json>> lines = ReadLines(options_.predictions);
    if (!lines) return lines.error();
    if (Status read = ReadFinished(); !read) return read;
    // Points of one model, format and step take turns.
    std::vector<GridPoint> turn;
    for (const nlohmann::json& line : *lines) {
      const Result<GridPoint> point = PointFromJson(line);
      if (!point) return point.error();
      if (point->num_ranks != group_.size() || point->link != options_.grid.link) continue;
      if (finished_.contains(point->Key())) continue;
      const bool same = !turn.empty() && turn.front().model == point->model &&
                        turn.front().weights == point->weights && turn.front().step == point->step;
      if (!same && !turn.empty()) {
        if (Status done = RunTurn(turn); !done) return done;
        turn.clear();
      }
      turn.push_back(*point);
    }
    return turn.empty() ? Status() : RunTurn(turn);
  }

 private:
  // Whole points of an earlier run; the file is rank 0's, and the others are told.
  Status ReadFinished() {
    std::string keys;
    if (group_.rank() == 0 && std::ifstream(options_.out)) {
      const Result<std::vector<nlohmann::json>> lines = ReadLines(options_.out);
      if (!lines) return lines.error();
      for (const nlohmann::json& line : *lines) keys += line.value("key", "") + "\n";
    }
    std::vector<std::byte> bytes(keys.size());
    std::memcpy(bytes.data(), keys.data(), keys.size());
    group_.Broadcast(0, &bytes, "points that ran before");
    std::istringstream all(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    for (std::string key; std::getline(all, key);) finished_.insert(key);
    return {};
  }

  struct Model {
    model::ModelSpec whole;
    weights::ModelWeights weights;
    std::unique_ptr<weights::ResidentWeights> store;
  };

  Result<Model*> ModelOf(const GridPoint& point, const strategy::Layout& layout) {
    const std::string key = point.model + "|" + point.weights + "|" + plan::ToText(layout);
    if (const auto found = models_.find(key); found != models_.end()) return found->second.get();
    // Those of other models and formats are not needed any more.
    std::erase_if(models_, [&](const auto& model) {
      return !model.first.starts_with(point.model + "|" + point.weights + "|");
    });
    Result<engine::ModelSource> source = engine::ModelSource::Open(point.model);
    if (!source) return source.error();
    const Result<runtime::Formats> formats = FormatsOf(point.weights);
    if (!formats) return formats.error();
    auto model = std::make_unique<Model>();
    model->whole = source->spec();
    Result<weights::ModelWeights> loaded = std::move(*source).Load(
        {.formats = formats->weights, .share = weights::ShareOf(layout, group_.rank())}, pool_,
        ledger_, {});
    if (!loaded) return loaded.error();
    model->weights = *std::move(loaded);
    model->store = std::make_unique<weights::ResidentWeights>(model->weights);
    return models_.emplace(key, std::move(model)).first->second.get();
  }

  struct Plan {
    GridPoint point;
    std::unique_ptr<runtime::Transformer> transformer;
    std::unique_ptr<evaluate::CaseSequences> sequences;
    std::vector<double> seconds = {};
  };

  Status Prepare(const GridPoint& point, Plan& plan) {
    const Result<Variant> variant = ParseVariant(point.plan, "");
    if (!variant) return variant.error();
    const strategy::Layout& layout = variant->plan.layout;
    const Result<Model*> model = ModelOf(point, layout);
    if (!model) return model.error();
    const Result<runtime::Formats> formats = FormatsOf(point.weights);
    if (!formats) return formats.error();
    const int groups = layout.attention_dp;
    runtime::TransformerOptions options{
        .max_step_tokens = std::max(1, evaluate::TokensOfGroup(point.step, groups)),
        .num_kv_blocks = evaluate::NumKvBlocks(point.step, groups) + 1,
        .context = point.step.context + point.step.tokens,
        .activations = formats->activations,
        .kv = formats->kv};
    options.parallel.roles = layout;
    options.parallel.pipeline = variant->plan.pipeline;
    options.parallel.wire = engine::WireFormatOf(variant->plan.wire, group_.size());
    options.parallel.comm_budget = variant->plan.comm_budget;
    options.parallel.group = group_.size() > 1 ? &group_ : nullptr;
    options.parallel.whole_spec = &(*model)->whole;
    Result<runtime::Transformer> transformer =
        runtime::Transformer::Create(*(*model)->store, *device_, options, ledger_);
    if (!transformer) return transformer.error();
    evaluate::WriteCache(transformer->kv_cache());
    plan.point = point;
    plan.transformer = std::make_unique<runtime::Transformer>(*std::move(transformer));
    plan.sequences = std::make_unique<evaluate::CaseSequences>(point.step, groups,
                                                               (*model)->whole.vocab_size, 1);
    return {};
  }

  double Step(Plan& plan) {
    if (group_.rank() != 0) {
      plan.transformer->FollowStep();
      return 0;
    }
    const auto start = std::chrono::steady_clock::now();
    const Status done =
        plan.transformer->Forward(plan.sequences->step(), [](int, int, const runtime::Logits&) {});
    CHECK(done.ok(), "{}", done.error().message);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Status RunTurn(const std::vector<GridPoint>& points) {
    std::vector<Plan> plans(points.size());
    for (size_t i = 0; i < points.size(); ++i) {
      const Status prepared = comm::AgreeOnSuccess(group_, Prepare(points[i], plans[i]));
      if (!prepared) return prepared;
    }
    const Result<runtime::Formats> formats = FormatsOf(points.front().weights);
    Result<evaluate::ReferenceKernel> reference =
        evaluate::ReferenceKernel::Create(kernels_, pool_, *formats, ledger_);
    const Status had =
        comm::AgreeOnSuccess(group_, reference ? Status() : Status(reference.error()));
    if (!had) return had;
    std::vector<cost::ReferenceSpeed> speeds;
    for (Plan& plan : plans) Step(plan);
    for (int round = 0; round < options_.rounds; ++round) {
      std::vector<double> reads;
      std::vector<double> dots;
      for (Plan& plan : plans) {
        const cost::ReferenceSpeed speed = reference->Measure(group_);
        reads.push_back(speed.read_bytes_per_second);
        dots.push_back(speed.dot_operations_per_second);
        plan.seconds.push_back(Step(plan));
      }
      speeds.push_back({Median(reads), Median(dots)});
    }
    for (Plan& plan : plans) {
      if (group_.rank() == 0) {
        plan.transformer->EndSteps();
      } else {
        plan.transformer->FollowSteps();
      }
    }
    return group_.rank() == 0 ? Write(plans, speeds) : Status();
  }

  Status Write(const std::vector<Plan>& plans, const std::vector<cost::ReferenceSpeed>& speeds) {
    std::ofstream out(options_.out, std::ios::app);
    for (const Plan& plan : plans) {
      Json line = {{"key", plan.point.Key()}, {"seconds", plan.seconds}};
      for (const cost::ReferenceSpeed& speed : speeds) {
        line["read_bytes_per_s"].push_back(speed.read_bytes_per_second);
        line["dot_operations_per_s"].push_back(speed.dot_operations_per_second);
      }
      out << line.dump() << "\n";
      fmt::print("{:110} {:9.2f} ms\n", plan.point.Key(),
                 1e3 * *std::min_element(plan.seconds.begin(), plan.seconds.end()));
    }
    std::fflush(stdout);
    return out.good() ? Status() : Error{fmt::format("{} could not be written", options_.out)};
  }

  const Options& options_;
  comm::Group& group_;
  hardware::ThreadPool& pool_;
  const kernels::KernelSet& kernels_;
  std::unique_ptr<device::Device> device_;
  memory::Ledger ledger_;  // without a limit
  std::map<std::string, std::unique_ptr<Model>> models_;
  std::set<std::string> finished_;
};

Status RunGrid(const Options& options) {
  Result<std::unique_ptr<comm::Group>> group = comm::Connect();
  if (!group) return group.error();
  const auto kernels = kernels::ChooseKernels();
  if (!kernels) return kernels.error();
  Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.threads);
  if (!cpus) return cpus.error();
  hardware::ThreadPool pool(*std::move(cpus));
  if (const Status started = pool.started(); !started) return started;
  return Run(options, **group, pool, **kernels).All();
}

int Main(int argc, char** argv) {
  CLI::App app("Tests predictions of step times");
  app.require_subcommand(1);
  Options options;
  CLI::App* predict = app.add_subcommand("predict", "Write what is predicted of a grid");
  predict->add_option("--profile", options.profile)->required();
  predict->add_option("--model", options.grid.models)->required();
  predict->add_option("--weights", options.grid.weights)->delimiter(',');
  predict->add_option("--plan", options.grid.plans)->required();
  predict->add_option("--case", options.grid.cases)->required()->delimiter(',');
  predict->add_option("--ranks", options.grid.num_ranks);
  CLI::App* run = app.add_subcommand("run", "Run the points of a file of predictions");
  run->add_option("--predictions", options.predictions)->required();
  run->add_option("--rounds", options.rounds);
  for (CLI::App* each : {predict, run}) {
    each->add_option("--link", options.grid.link, "The name of the link between ranks");
    each->add_option("--threads", options.threads, "Of each rank");
    each->add_option("--out", options.out)->required();
  }
  CLI11_PARSE(app, argc, argv);
  const Status status = *predict ? Predict(options) : RunGrid(options);
  if (!status) fmt::print(stderr, "prediction_bench: {}\n", status.error().message);
  return status ? 0 : 1;
}

}  // namespace
}  // namespace convene::bench

int main(int argc, char** argv) { return convene::bench::Main(argc, argv); }
