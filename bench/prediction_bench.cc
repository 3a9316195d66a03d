// Tests predictions of step times: all of a grid are written to a file, with the profile's hash,
// before the first step runs; then the same points run, plans in turn, and what is written of them
// names the prediction that they were for. bench/README.md says how.
//   prediction_bench predict --profile P.json --model DIR ... --out predictions.jsonl
//   mpirun -n 2 prediction_bench run --predictions predictions.jsonl --out runs.jsonl
//   bench/prediction_table.py predictions.jsonl runs.jsonl
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/digest.h"
#include "base/environment.h"
#include "base/median.h"
#include "bench/prediction_grid.h"
#include "bench/step_prediction.h"
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
};

// Lines of JSON objects. Error: a file that cannot be read, a line that is none.
Result<std::vector<nlohmann::json>> ReadLines(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{fmt::format("{} cannot be read", path)};
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      return Error{fmt::format("{}, line {}, is no JSON object", path, lines.size() + 1)};
    }
    lines.push_back(std::move(json));
  }
  return lines;
}

// Takes the last line off a file where it was cut, by a run that was ended, so that others can be
// appended.
Status RemoveCutLine(const std::string& path) {
  std::string text;
  {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    if (!file) return Error{fmt::format("{} cannot be read", path)};
    text = all.str();
  }
  if (text.empty() || text.back() == '\n') return {};
  const size_t end = text.rfind('\n');
  const size_t kept = end == std::string::npos ? 0 : end + 1;
  std::error_code error;
  std::filesystem::resize_file(path, kept, error);
  if (error) return Error{fmt::format("{} could not be written: {}", path, error.message())};
  fmt::print("the last line of {} was cut; it is removed, and its point runs again\n", path);
  return {};
}

// A line of a file of predictions, as far as runs need it; what they keep of it says later for
// which prediction they were.
struct PredictedPoint {
  GridPoint point;
  std::string profile;  // its hash
  double seconds = 0;

  static Result<PredictedPoint> FromJson(const nlohmann::json& json) {
    Result<GridPoint> point = PointFromJson(json);
    if (!point) return point.error();
    const auto profile = json.find("profile");
    const auto seconds = json.find("predicted_s");
    if (profile == json.end() || !profile->is_string() || seconds == json.end() ||
        !seconds->is_number()) {
      return Error{fmt::format("{} has no \"profile\" or no \"predicted_s\"", point->Key())};
    }
    return PredictedPoint{*std::move(point), *profile, *seconds};
  }
};

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

// Keys of predictions, with the hash of the profile that each is from; none where no such file is.
Result<std::map<std::string, std::string>> PredictedBefore(const std::string& path) {
  std::map<std::string, std::string> keys;
  if (!std::ifstream(path)) return keys;
  const Result<std::vector<nlohmann::json>> lines = ReadLines(path);
  if (!lines) return lines.error();
  for (const nlohmann::json& line : *lines) {
    const Result<PredictedPoint> predicted = PredictedPoint::FromJson(line);
    if (!predicted) return predicted.error().At(path);
    keys.emplace(predicted->point.Key(), predicted->profile);
  }
  return keys;
}

Result<Json> PredictPoint(const GridPoint& point, const model::ModelSpec& spec,
                          const cost::StepCosts& costs, const std::string& profile) {
  const Result<plan::Plan> plan = PlanOf(point);
  if (!plan) return plan.error();
  const Result<runtime::Formats> formats = FormatsOf(point.weights);
  if (!formats) return formats.error();
  const strategy::Roles roles = plan->layout;
  planner::StepQuestion question{.spec = spec};
  question.options.roles = roles;
  question.options.pipeline = plan->pipeline;
  question.options.bytes = runtime::Transformer::BytesOf(
      spec, *formats, engine::WireFormatOf(plan->wire, point.num_ranks),
      engine::ReturnsFp8(plan->wire));
  question.groups = evaluate::RowsOf(point.step, roles);
  const Result<StepPrediction> predicted = PredictStepOfCosts(question, costs);
  if (!predicted) return predicted.error();
  Json line = ToJson(point);
  line["profile"] = profile;
  line.update(ToJson(*predicted));
  return line;
}

// All of the grid or none: what a file predicts is never replaced, since steps may have run for it.
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
  const auto before = PredictedBefore(options.out);
  if (!before) return before.error();
  std::map<std::string, model::ModelSpec> specs;
  std::string lines;
  for (const GridPoint& point : *grid) {
    if (const auto found = before->find(point.Key()); found != before->end()) {
      return Error{fmt::format(
          "{} predicts {} already, from profile {} (this profile is {}): write to another file, or "
          "remove that one and the runs that are for it",
          options.out, point.Key(), found->second, hash)};
    }
    if (!specs.contains(point.model)) {
      const Result<model::ModelSpec> spec = SpecOf(point.model);
      if (!spec) return spec.error();
      specs.emplace(point.model, *spec);
    }
    const cost::StepCosts* costs =
        profile->CostsOf(point.num_ranks, point.num_threads, point.weights);
    if (costs == nullptr) {
      return Error{fmt::format("{} has no costs of {} ranks with {} threads and weights in {}",
                               options.profile, point.num_ranks, point.num_threads, point.weights)};
    }
    const Result<Json> line = PredictPoint(point, specs.at(point.model), *costs, hash);
    if (!line) return line.error();
    lines += line->dump() + "\n";
  }
  std::ofstream out(options.out, std::ios::app);
  if (!out) return Error{fmt::format("{} cannot be written", options.out)};
  out << lines << std::flush;
  if (!out) return Error{fmt::format("{} could not be written", options.out)};
  fmt::print("{} predictions from profile {} in {}\n", grid->size(), hash, options.out);
  return {};
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
    const Result<std::vector<PredictedPoint>> points = ReadPoints();
    if (!points) return points.error();
    // Points of one model, format and step take turns.
    std::vector<PredictedPoint> turn;
    for (const PredictedPoint& predicted : *points) {
      const GridPoint& point = predicted.point;
      const bool same = !turn.empty() && turn.front().point.model == point.model &&
                        turn.front().point.weights == point.weights &&
                        turn.front().point.step == point.step;
      if (!same && !turn.empty()) {
        if (Status done = RunTurn(turn); !done) return done;
        turn.clear();
      }
      turn.push_back(predicted);
    }
    return turn.empty() ? Status() : RunTurn(turn);
  }

 private:
  // Those that are for these ranks and this link and did not run before. Errors, before anything
  // runs: points of other threads, of plans that cannot be compared, or that ran for another
  // prediction.
  Result<std::vector<PredictedPoint>> ReadPoints() {
    const Result<std::vector<nlohmann::json>> lines = ReadLines(options_.predictions);
    if (!lines) return lines.error();
    const Result<std::map<std::string, nlohmann::json>> finished = ReadFinished();
    if (!finished) return finished.error();
    std::vector<PredictedPoint> points;
    int num_finished = 0;
    for (const nlohmann::json& line : *lines) {
      Result<PredictedPoint> predicted = PredictedPoint::FromJson(line);
      if (!predicted) return predicted.error().At(options_.predictions);
      const GridPoint& point = predicted->point;
      if (point.num_ranks != group_.size() || point.link != options_.grid.link) continue;
      if (point.num_threads != pool_.size()) {
        return Error{
            fmt::format("{} is predicted with {} threads of each rank, and these have {}: "
                        "run with --threads {}",
                        point.Key(), point.num_threads, pool_.size(), point.num_threads)};
      }
      if (const Result<plan::Plan> plan = PlanOf(point); !plan) return plan.error();
      const auto ran = finished->find(point.Key());
      if (ran == finished->end()) {
        points.push_back(*std::move(predicted));
        continue;
      }
      const nlohmann::json now = {{"profile", predicted->profile},
                                  {"predicted_s", predicted->seconds}};
      if (ran->second != now) {
        return Error{fmt::format(
            "{} has run {} for the prediction {}, and {} now predicts {}: "
            "write to another file",
            options_.out, point.Key(), ran->second.dump(), options_.predictions, now.dump())};
      }
      ++num_finished;
    }
    if (group_.rank() == 0) {
      fmt::print("{} of {} points of {} are to run; {} ran before, {} have other ranks or links\n",
                 points.size(), lines->size(), options_.predictions, num_finished,
                 lines->size() - points.size() - static_cast<size_t>(num_finished));
    }
    return points;
  }

  // By key, which prediction each whole point of an earlier run was for; the file is rank 0's, and
  // the others are told.
  Result<std::map<std::string, nlohmann::json>> ReadFinished() {
    nlohmann::json finished = nlohmann::json::object();
    Status read;
    const bool has_file = group_.rank() == 0 && std::ifstream(options_.out);
    if (has_file) read = RemoveCutLine(options_.out);
    if (has_file && read) {
      const Result<std::vector<nlohmann::json>> lines = ReadLines(options_.out);
      if (!lines) read = lines.error();
      for (size_t i = 0; lines && i < lines->size(); ++i) {
        const nlohmann::json& line = (*lines)[i];
        if (!line.contains("key") || !line["key"].is_string()) continue;
        nlohmann::json& of = finished[line["key"].get<std::string>()];
        for (const char* member : {"profile", "predicted_s"}) {
          of[member] = line.contains(member) ? line[member] : nlohmann::json();
        }
      }
    }
    if (const Status all = comm::AgreeOnSuccess(group_, read); !all) return all.error();
    const std::string text = finished.dump();
    const auto told = std::as_bytes(std::span(text));
    std::vector<std::byte> bytes(told.begin(), told.end());
    group_.Broadcast(0, &bytes, "points that ran before");
    return nlohmann::json::parse(
               std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()))
        .get<std::map<std::string, nlohmann::json>>();
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
    PredictedPoint predicted;
    std::unique_ptr<runtime::Transformer> transformer;
    std::unique_ptr<evaluate::CaseSequences> sequences;
    std::vector<double> seconds = {};
  };

  Status Prepare(const PredictedPoint& predicted, Plan& plan) {
    const GridPoint& point = predicted.point;
    const Result<plan::Plan> said = PlanOf(point);
    if (!said) return said.error();
    const strategy::Layout& layout = said->layout;
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
    options.parallel.pipeline = said->pipeline;
    options.parallel.wire = engine::WireFormatOf(said->wire, group_.size());
    options.parallel.returns_fp8 = engine::ReturnsFp8(said->wire);
    options.parallel.group = group_.size() > 1 ? &group_ : nullptr;
    options.parallel.whole_spec = &(*model)->whole;
    Result<runtime::Transformer> transformer =
        runtime::Transformer::Create(*(*model)->store, *device_, options, ledger_);
    if (!transformer) return transformer.error();
    evaluate::WriteCache(transformer->kv_cache());
    plan.predicted = predicted;
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

  Status RunTurn(const std::vector<PredictedPoint>& points) {
    std::vector<Plan> plans(points.size());
    for (size_t i = 0; i < points.size(); ++i) {
      const Status prepared = comm::AgreeOnSuccess(group_, Prepare(points[i], plans[i]));
      if (!prepared) return prepared;
    }
    const Result<runtime::Formats> formats = FormatsOf(points.front().point.weights);
    Result<evaluate::ReferenceKernel> reference =
        evaluate::ReferenceKernel::Create(kernels_, pool_, *formats, ledger_);
    const Status had =
        comm::AgreeOnSuccess(group_, reference ? Status() : Status(reference.error()));
    if (!had) return had;
    std::vector<cost::ReferenceSpeed> speeds;
    for (Plan& plan : plans) Step(plan);
    std::vector<Plan*> turns;
    for (Plan& plan : plans) turns.push_back(&plan);
    for (int round = 0; round < options_.rounds; ++round) {
      // So that odd and even rounds have both orders.
      if (round > 0 && round % 2 == 0) std::ranges::reverse(turns);
      std::vector<double> reads;
      std::vector<double> dots;
      for (Plan* const plan : turns) {
        const cost::ReferenceSpeed speed = reference->Measure(group_);
        reads.push_back(speed.read_bytes_per_second);
        dots.push_back(speed.dot_operations_per_second);
        plan->seconds.push_back(Step(*plan));
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
      Json line = {{"key", plan.predicted.point.Key()},
                   {"profile", plan.predicted.profile},
                   {"predicted_s", plan.predicted.seconds},
                   {"seconds", plan.seconds}};
      for (const cost::ReferenceSpeed& speed : speeds) {
        line["read_bytes_per_s"].push_back(speed.read_bytes_per_second);
        line["dot_operations_per_s"].push_back(speed.dot_operations_per_second);
      }
      out << line.dump() << "\n";
      fmt::print("{:110} {:9.2f} ms\n", plan.predicted.point.Key(),
                 1e3 * *std::min_element(plan.seconds.begin(), plan.seconds.end()));
    }
    std::fflush(stdout);
    out.flush();
    return out.good() ? Status() : Error{fmt::format("{} could not be written", options_.out)};
  }

  const Options& options_;
  comm::Group& group_;
  hardware::ThreadPool& pool_;
  const kernels::KernelSet& kernels_;
  std::unique_ptr<device::Device> device_;
  memory::Ledger ledger_;  // without a limit
  std::map<std::string, std::unique_ptr<Model>> models_;
};

Status RunGrid(const Options& options) {
  Result<std::unique_ptr<comm::Group>> group = comm::Connect();
  if (!group) return group.error();
  const auto kernels = kernels::ChooseKernels();
  if (!kernels) return kernels.error();
  Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.grid.num_threads);
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
  run->add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  for (CLI::App* each : {predict, run}) {
    each->add_option("--link", options.grid.link, "The name of the link between ranks");
    each->add_option("--threads", options.grid.num_threads, "Of each rank");
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
