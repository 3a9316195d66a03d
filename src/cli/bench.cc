#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "checkpoint/model_files.h"
#include "cli/bench_server.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/paged_figures.h"
#include "cli/value_options.h"
#include "engine/rank_options.h"
#include "engine/role_weights.h"
#include "engine/scheduler.h"
#include "evaluate/bench_point.h"
#include "evaluate/bench_workload.h"
#include "evaluate/measure_machine.h"
#include "evaluate/peak_meter.h"
#include "hardware/memory_status.h"
#include "kernels/kernel_set.h"
#include "model/model_size.h"

namespace convene::cli {
namespace {

using evaluate::BenchPoint;
using evaluate::PeakMeter;
using evaluate::Peaks;
using evaluate::Repetition;
using evaluate::WorkloadShape;

constexpr double kGigaOfRates = 1e9;
constexpr uint64_t kDefaultSeed = 1;
constexpr uint64_t kLeastMeasuringBytes = uint64_t{8} << 20;

std::string TableHeader() {
  return "test    batch  tokens/s  (min - max)            GFLOP/s  of peak  experts     GB/s  of "
         "peak\n";
}

// A GPU does not say how long its experts took, and without peaks there are no shares of them.
std::string PercentOrDash(double share) {
  return share > 0 ? fmt::format("{:.1f} %", 100 * share) : "-";
}

std::string TableRow(const BenchPoint& point) {
  const evaluate::Spread rate = point.SpreadOf(&Repetition::tokens_per_s);
  return fmt::format("{:<8}{:>5}{:>10.2f}  {:<22}{:>8.1f}{:>9}{:>9}{:>9.2f}{:>9}\n", point.name,
                     point.batch, rate.median, fmt::format("({:.2f} - {:.2f})", rate.min, rate.max),
                     point.SpreadOf(&Repetition::flops_per_s).median / kGigaOfRates,
                     PercentOrDash(point.share_of_peak()),
                     PercentOrDash(point.expert_share_of_peak()),
                     point.SpreadOf(&Repetition::bytes_per_s).median / kGigaOfRates,
                     PercentOrDash(point.share_of_bandwidth()));
}

class Bench : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddNumber(app, "-p,--prompt-tokens", shape_.prompt_tokens, {1, 1 << 20},
              "Length of each prompt (default: 512)");
    AddNumber(app, "-n,--gen-tokens", shape_.gen_tokens, {1, 1 << 20},
              "Tokens generated after it (default: 64)");
    AddNumbers(app, "--batch", batches_, {1, 1 << 16},
               "Sequences at the same time (default: 1,8,32)")
        ->type_name("N,N,...");
    AddNumber(app, "--repeat", num_repeats_, {1, 1000},
              "Repetitions; prefill of further batches runs once (default: 5)");
    AddNumber(
        app, "--seed", seed_, kAnySeed,
        "Of the random token ids (default: 1; of a server's prompts another one at each run)");
    app.add_flag("--no-peaks", no_peaks_,
                 "Do not measure what the machine could do beside each figure: quicker, and "
                 "without shares of peaks");
    AddJsonOption(app, json_path_);
    AddModelOptions(app, model_options_);
    app.add_flag("--random-weights", model_options_.load.random_weights,
                 "Make weights of the shape that MODEL's config.json says; MODEL needs no others, "
                 "and may be that file");
    app.get_option("MODEL")->required(false);
    server_.AddOptions(app, {"--prompt-tokens", "--gen-tokens", "--batch", "--seed", "--json"});
    app.parse_complete_callback([this] {
      const bool is_something = server_.is_wanted() || !model_options_.directory.empty();
      if (!is_something) throw CLI::RequiredError("MODEL, or --server");
    });
  }

  std::string model_directory() const override { return model_options_.directory; }
  bool refuses_ranks() const override { return server_.is_wanted(); }

  Status Run() override {
    if (server_.is_wanted()) {
      return server_.Run({.prompt_words = shape_.prompt_tokens,
                          .gen_tokens = shape_.gen_tokens,
                          .num_clients = batches_,
                          .seed = seed_,
                          .json_path = json_path_});
    }
    // A plan may say how many threads and step tokens there are.
    const Result<plan::Plan> planned =
        ResolvePlan(model_options_.plan, model_options_.directory, ranks()->size());
    if (!planned) return planned.error();
    if (const Status sense = SetLoadOptions(*planned); !sense) return sense;
    const Result<hardware::Isa> isa = hardware::ChooseIsa();
    if (!isa) return isa.error();
    const Result<hardware::Profile> machine = MeasureBefore(*isa, *planned);
    if (!machine) return machine.error();
    const Result<std::unique_ptr<engine::LoadedModel>> model = Load();
    if (!model) return model.error();
    if (model_options_.load.gpu && !gpu_ && !no_peaks_) {
      return Unavailable("the GPU cannot be measured; --no-peaks does without");
    }
    std::optional<PeakMeter> meter;
    if (gpu_) {
      meter.emplace(**model, *gpu_);
    } else if (!no_peaks_) {
      meter.emplace(**model, *isa, machine->last_level_cache_bytes);
    }
    memory_.Sample();
    const Status told = WriteReport({json_path_}, DescribeModel(**model, *machine) + TableHeader());
    if (!told) return told;
    for (const int batch : batches_) {
      if (const Status measured = MeasureBatch(**model, meter, batch); !measured) return measured;
    }
    memory_.Sample();
    std::vector<BenchPoint> points = prefill_;
    points.insert(points.end(), decode_.begin(), decode_.end());
    remarks_ = evaluate::RemarksOnShares(points, (*model)->memory().weights_bytes(),
                                         machine->last_level_cache_bytes);
    for (const std::string& remark : remarks_) {
      if (const Status remarked = WriteReport({json_path_}, remark + "\n"); !remarked) {
        return remarked;
      }
    }
    PrintNote("{}peak memory: {}\n{}", DescribePages((*model)->paged()),
              FormatBytes(memory_.peak_bytes()),
              DescribeChanges((*model)->transformer().phase_changes()));

    const Status watched = model_options_.watch->Write();
    return watched ? WriteJson(json_path_,
                               Figures(**model, *machine, meter ? meter->typical() : Peaks()))
                   : watched;
  }

 private:
  // Seen before the machine is measured, which takes seconds.
  Status SetLoadOptions(const plan::Plan& planned) {
    engine::LoadOptions& load = model_options_.load;
    load.context = shape_.prompt_tokens + shape_.gen_tokens;
    load.max_sequences = largest_batch();
    const Result<model::ModelSpec> spec = load.random_weights
                                              ? checkpoint::OpenConfig(model_options_.directory)
                                              : ReadSpec(model_options_.directory);
    if (!spec) return spec.error();
    // How many sequences run together is known, and memory keeps room for all of them. Not of
    // encoders, whose inputs it does not count, and of plans that say what lies on a disk.
    const int longest = shape_.prompt_tokens + shape_.gen_tokens;
    const bool keeps_room = !load.gpu && !spec->has_encoder() && !planned.spilled_kv;
    if (load.gpu || keeps_room) {
      load.batch_work = engine::BatchWork{.num_requests = largest_batch(),
                                          .prompt_tokens = double(shape_.prompt_tokens),
                                          .gen_tokens = double(shape_.gen_tokens),
                                          .longest = longest};
    }
    if (keeps_room) {
      // Nothing is chosen by these lengths. Of one where the last block is the answer's, no block
      // is kept for a scheduler, which is not used here.
      const int before_last = (engine::Scheduler::BlocksFor(longest) - 1) * kernels::kKvBlockTokens;
      load.batch_work->prompt_tokens = before_last;
      load.batch_work->gen_tokens = longest - before_last;
      load.spill_directory = engine::kNoSpill;
    }
    model_options_.knows_work = true;
    model_options_.workload.requests = {{shape_.prompt_tokens, shape_.gen_tokens}};
    engine::LoadOptions with_plan = load;
    with_plan.plan = planned;
    if (!model_options_.says_chunk()) {
      with_plan.max_step_tokens = planned.step_tokens_or(load.max_step_tokens);
    }
    if (const Status sense = engine::CheckLoadOptions(with_plan); !sense) return sense;
    return engine::CheckContext(*spec, load);
  }

  int largest_batch() const { return *std::max_element(batches_.begin(), batches_.end()); }

  // Where ranks are not alike, a plan's threads are those of the rank with the most cores.
  Result<std::vector<int>> CpusOfPlan(const hardware::Topology& topology,
                                      const plan::Plan& planned) const {
    const LocalRank local =
        engine::LocalRankAmongFirst(ranks()->size(), planned.layout.num_ranks());
    const std::optional<int> given = model_options_.load.num_threads;
    if (!given && planned.num_threads > 0) {
      Result<std::vector<int>> cpus = hardware::CpusForRank(topology, local, planned.num_threads);
      if (cpus || ranks()->size() == 1) return cpus;
    }
    return hardware::CpusForRank(topology, local, given);
  }

  // Before the model is loaded, since a model pins this thread and takes the memory.
  Result<hardware::Profile> MeasureBefore(hardware::Isa isa, const plan::Plan& planned) {
    const Result<hardware::Topology> topology = hardware::ReadTopology();
    if (!topology) return topology.error();
    // As many threads as the model will have.
    Result<std::vector<int>> cpus = CpusOfPlan(*topology, planned);
    if (!cpus) return cpus.error();
    hardware::ThreadPool pool(*std::move(cpus));
    if (const Status started = pool.started(); !started) return started.error();
    if (no_peaks_) return evaluate::DescribeMachine(*topology, pool, isa);
    evaluate::MeasureOptions options{.budget_s = 0.3, .disk_directory = CacheDirectory()};
    if (const auto budget = model_options_.load.memory_budget) {
      // Less measures nothing; a model would have no room beside it either.
      options.most_memory_bytes = std::max(engine::LeftOfBudget(*budget), kLeastMeasuringBytes);
    }
    if (const std::optional<int> gpu = model_options_.load.gpu) {
      for (const hardware::GpuProfile& each : evaluate::MeasureGpus(pool, options.budget_s)) {
        if (each.index == *gpu) gpu_ = each;
      }
    }
    return evaluate::MeasureMachine(*topology, pool, isa, options);
  }

  Result<std::unique_ptr<engine::LoadedModel>> Load() {
    Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_options_, ranks());
    if (!model) return model;
    WorkloadShape largest = shape_;
    largest.batch = largest_batch();
    const int64_t num_blocks =
        evaluate::BenchWorkload::BlocksFor((*model)->spec(), largest, (*model)->num_groups());
    if (num_blocks > (*model)->num_kv_blocks()) {
      return Error{fmt::format(
          "batch {} needs {} blocks of KV cache and memory has room for {}; lower --batch, "
          "--prompt-tokens or --gen-tokens, or give more memory{}",
          largest_batch(), num_blocks, (*model)->num_kv_blocks(),
          model_options_.load.memory_budget ? " (--memory-budget)" : "")};
    }
    if ((*model)->spec().has_encoder() && shape_.prompt_tokens > (*model)->max_step_tokens()) {
      return Error{
          fmt::format("an encoder sees its input of {} tokens in one step of at most {}; raise "
                      "--chunk or lower --prompt-tokens",
                      shape_.prompt_tokens, (*model)->max_step_tokens())};
    }
    return model;
  }

  Status MeasureBatch(engine::LoadedModel& model, std::optional<PeakMeter>& meter, int batch) {
    WorkloadShape shape = shape_;
    shape.batch = batch;
    evaluate::BenchWorkload workload(model, shape, seed_.value_or(kDefaultSeed));
    const bool is_first = prefill_.empty();
    if (is_first) {  // the first one also takes the memory's pages
      if (const auto warmed = workload.Prefill(); !warmed) return warmed.error();
    }
    const Status prefilled = MeasurePoint(
        meter, fmt::format("pp{}", shape.prompt_tokens), batch, is_first ? num_repeats_ : 1,
        [&]() -> Result<std::vector<evaluate::Work>> {
          const Result<evaluate::Work> work = workload.Prefill();
          if (!work) return work.error();
          return std::vector<evaluate::Work>{*work};
        },
        prefill_);
    if (!prefilled) return prefilled;
    const Status decoded = MeasurePoint(
        meter, fmt::format("tg{}", shape.gen_tokens), batch, num_repeats_,
        [&] { return workload.Decode(); }, decode_);
    if (workload.met_not_finite()) {
      PrintNote(
          "note: logits are NaN or infinite, as random weights may make them; such a model can be "
          "timed, but gives no text\n");
    }
    return decoded;
  }

  template <typename RunOnce>
  Status MeasurePoint(std::optional<PeakMeter>& meter, const std::string& name, int batch,
                      int num_repeats, RunOnce run_once, std::vector<BenchPoint>& points) {
    BenchPoint point{.name = name, .batch = batch};
    const auto measure = [&] { return meter ? meter->Measure() : Result<Peaks>(Peaks()); };
    Result<Peaks> before = measure();
    if (!before) return before.error();
    for (int i = 0; i < num_repeats; ++i) {
      const Result<std::vector<evaluate::Work>> steps = run_once();
      if (!steps) return steps.error();
      const Result<Peaks> after = measure();
      if (!after) return after.error();
      point.repetitions.push_back(evaluate::MakeRepetition(*steps, *before, *after));
      before = after;
    }
    memory_.Sample();
    points.push_back(std::move(point));
    return WriteReport({json_path_}, TableRow(points.back()));
  }

  // What the ranks hold, where that is not the same; otherwise rank 0's.
  static std::string DescribeWeights(const engine::LoadedModel& model) {
    const std::vector<engine::RoleWeights> roles =
        engine::RoleWeightsOf(model.spec(), model.formats().weights, model.plan());
    if (roles.empty()) return FormatBytes(model.memory().weights_bytes());
    return fmt::format("{}; shares of peaks are rank 0's", engine::Words(roles));
  }

  std::string DescribeModel(const engine::LoadedModel& model,
                            const hardware::Profile& machine) const {
    return fmt::format(
        "{}: {}, {}, {} parameters, {} of them per token; {} weights {}\n{}{}, {}, "
        "{}, steps of at most {}\n",
        model_options_.directory, model.spec().family,
        FormatCount(static_cast<uint64_t>(model.spec().num_layers()), "layer"),
        FormatCount(static_cast<uint64_t>(model::TotalParameters(model.spec()))),
        FormatCount(static_cast<uint64_t>(model::ActivatedParameters(model.spec()))),
        kernels::Name(model.formats().weights.matrices), DescribeWeights(model),
        gpu_ ? gpu_->name + ", beside " : "", hardware::NameOf(machine.cpu()),
        FormatCount(machine.cpus.size(), "thread"), machine.isa,
        FormatCount(static_cast<uint64_t>(model.max_step_tokens()), "token"));
  }

  // None where all ranks have both attention and experts.
  static nlohmann::ordered_json RoleFigures(const engine::LoadedModel& model) {
    nlohmann::ordered_json roles = nlohmann::ordered_json::array();
    for (const engine::RoleWeights& role :
         engine::RoleWeightsOf(model.spec(), model.formats().weights, model.plan())) {
      roles.push_back({{"role", role.role}, {"ranks", role.ranks}, {"bytes", role.bytes}});
    }
    return roles;
  }

  nlohmann::ordered_json Figures(engine::LoadedModel& model, const hardware::Profile& machine,
                                 const Peaks& typical) const {
    nlohmann::ordered_json prefill = nlohmann::ordered_json::array();
    for (const BenchPoint& point : prefill_) prefill.push_back(ToJson(point));
    nlohmann::ordered_json decode = nlohmann::ordered_json::array();
    for (const BenchPoint& point : decode_) decode.push_back(ToJson(point));
    const auto measured = [&](double figure) {
      return no_peaks_ ? nlohmann::ordered_json() : nlohmann::ordered_json(figure);
    };
    // Of the format that the model computes in, the rate measured beside the points.
    const auto rate = [&](kernels::ActivationFormat format, double before) {
      const bool is_own = !gpu_ && model.formats().activations == format;
      return measured(is_own ? typical.flops_per_s / kGigaOfRates : before);
    };
    return {
        {"model", model_options_.directory},
        {"family", model.spec().family},
        {"weights", kernels::Name(model.formats().weights.matrices)},
        {"threads", machine.cpus.size()},
        {"prompt_tokens", shape_.prompt_tokens},
        {"gen_tokens", shape_.gen_tokens},
        {"chunk", model.max_step_tokens()},
        {"seed", seed_.value_or(kDefaultSeed)},
        {"remarks", remarks_},
        {"prefill", ToJson(prefill_.front())},
        {"prefill_by_batch", prefill},
        {"decode", decode},
        {"weights_bytes", model.memory().weights_bytes()},
        {"weights_bytes_by_role", RoleFigures(model)},
        {"kv_bytes", model.memory().kv_bytes()},
        {"peak_resident_bytes", memory_.peak_bytes()},
        {"paged", PagedFigures(model)},
        {"experts_moved", ToJson(model.transformer().phase_changes())},
        {"machine",
         {{"cpu", machine.cpu_name},
          {"isa", machine.isa},
          {"gpu", GpuFigures()},
          {"f32_gflops", rate(kernels::ActivationFormat::kF32, machine.f32_gflops)},
          {"bf16_gflops", rate(kernels::ActivationFormat::kBf16, machine.bf16_gflops)},
          {"int8_gops", rate(kernels::ActivationFormat::kInt8, machine.int8_gops)},
          {"read_gbps", measured(gpu_ ? machine.read_gbps : typical.bytes_per_s / kGigaOfRates)},
          {"disk_gbps", measured(machine.disk_gbps)},
          {"date", machine.date}}},
    };
  }

  // Null: the CPU computes, or the GPU was not measured.
  nlohmann::ordered_json GpuFigures() const {
    if (!gpu_) return nullptr;
    return {{"name", gpu_->name},
            {"bf16_gflops", gpu_->bf16_gflops},
            {"read_gbps", gpu_->read_gbps},
            {"to_device_gbps", gpu_->to_device_gbps}};
  }

  ModelOptions model_options_;
  ServerBench server_;
  WorkloadShape shape_;
  std::vector<int> batches_ = {1, 8, 32};
  int num_repeats_ = 5;
  std::optional<uint64_t> seed_;
  bool no_peaks_ = false;
  std::string json_path_;

  std::optional<hardware::GpuProfile> gpu_;  // that computes, as it was measured before
  hardware::PeakMemory memory_;
  std::vector<BenchPoint> prefill_;
  std::vector<BenchPoint> decode_;
  std::vector<std::string> remarks_;
};

}  // namespace

std::unique_ptr<Command> MakeBench() { return std::make_unique<Bench>(); }

}  // namespace convene::cli
