#include "evaluate/measure_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/median.h"
#include "base/version.h"
#include "comm/agree.h"
#include "comm/from_rank_zero.h"
#include "cost/fit_step_costs.h"
#include "device/cpu/cpu_device.h"
#include "evaluate/held_out_steps.h"
#include "evaluate/invented_model.h"
#include "evaluate/measure_loads.h"
#include "evaluate/measure_unevenness.h"
#include "evaluate/reference_kernel.h"
#include "evaluate/step_case.h"
#include "hardware/drop_from_caches.h"
#include "hardware/profile.h"
#include "memory/ledger.h"
#include "runtime/recorded_step.h"
#include "runtime/transformer.h"
#include "weights/weight_layout.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

// Change of the logarithm of the memory's speed during a step from which on it is not used.
constexpr double kMostChange = 0.12;
// Of the last-level cache, the weights of the model whose weights stay there; and up to how many
// times as many bytes others are taken to stay there, too.
constexpr double kShareOfCache = 1.0 / 3;
constexpr double kMarginOfCache = 1.5;
// Of each model, whatever the time is: the smallest steps.
constexpr size_t kFewestCases = 4;

// Shapes that differ in what decides about efficiency: rows and columns, heads that share keys or
// none, a latent, few large experts or many small ones. None is that of a published model.
const std::vector<ModelShape>& Shapes() {
  static const std::vector<ModelShape> shapes = {
      {.hidden = 1536,
       .heads = 12,
       .qk_norm = model::QkNorm::kWholeProjection,
       .layers = 3,
       .experts = 40,
       .top_k = 4,
       .intermediate = 768,
       .vocab = 16384},
      {.hidden = 2560,
       .heads = 20,
       .kv_heads = 4,
       .qk_norm = model::QkNorm::kPerHead,
       .layers = 3,
       .experts = 12,
       .top_k = 2,
       .intermediate = 1536,
       .shared_intermediate = 1024,
       .vocab = 8192},
      {.hidden = 1792,
       .heads = 14,
       .head_dim = 128,
       .latent = 512,
       .layers = 4,
       .experts = 96,
       .top_k = 8,
       .intermediate = 768,
       .shared_intermediate = 2048,
       .vocab = 32768,
       .dense_intermediate = 8192},
  };
  return shapes;
}

// Loads from one row to many, with short contexts and long ones.
std::vector<StepCase> CasesOfOneRank() {
  return {{1, 16, 0},  {1, 64, 0},  {1, 200, 0},  {1, 512, 0},   {1, 128, 640}, {1, 512, 1536},
          {8, 64, 0},  {1, 1, 64},  {1, 1, 1000}, {1, 1, 3000},  {2, 1, 300},   {4, 1, 100},
          {8, 1, 600}, {16, 1, 64}, {32, 1, 200}, {24, 1, 1000}, {64, 1, 40}};
}

std::vector<StepCase> CasesOfSeveralRanks(int num_ranks) {
  std::vector<StepCase> cases = {{1, 16, 0},    {1, 64, 0},     {1, 200, 0},  {1, 512, 0},
                                 {1, 128, 640}, {1, 512, 1536}, {1, 1, 64},   {1, 1, 2000},
                                 {2, 1, 300},   {4, 1, 600},    {16, 1, 200}, {16, 1, 1000}};
  for (StepCase& each : cases) each.batch *= num_ranks;
  return cases;
}

// A model under one plan, and the steps that are measured of it.
struct Trial {
  ModelShape shape;
  int model = 0;  // the shape's number
  strategy::Layout layout = {};
  strategy::Pipeline pipeline = {};
  std::vector<StepCase> cases;
  bool int8_kv = false;             // keys and values are cached in int8
  bool has_cached_weights = false;  // they stay in the last-level cache between steps
  double share = 1;                 // of the time there is, beside those of other trials
};

// Attention of such a model with next to nothing around it, whose steps therefore take little time.
ModelShape AttentionOf(ModelShape shape) {
  shape.layers = std::min(shape.layers, 2);
  shape.experts = 4;
  shape.top_k = 1;
  shape.intermediate = std::min(shape.intermediate, 256);
  shape.shared_intermediate = 0;
  shape.dense_intermediate = 0;
  shape.vocab = std::min(shape.vocab, 1024);
  return shape;
}

constexpr double kShareOfSpecial = 0.3;

// All kinds of layers in so few bytes that the last-level cache has room for a second model. None:
// it has not even room for one with an expert for each rank.
std::optional<ModelShape> ShapeOfCache(int num_ranks, kernels::WeightFormat format,
                                       double cache_bytes) {
  ModelShape shape{.hidden = 384,
                   .heads = 8,
                   .layers = 3,
                   .experts = 1,
                   .top_k = 2,
                   .intermediate = 256,
                   .shared_intermediate = 256,
                   .vocab = 1024,
                   .dense_intermediate = 1024};
  const double most = kShareOfCache * cache_bytes / weights::BytesPerWeight({.matrices = format});
  const double hidden = shape.hidden;
  const int sparse_layers = shape.layers - 1;
  const double others =
      4 * hidden * hidden * shape.layers + 2 * hidden * shape.vocab +
      3 * hidden * (shape.dense_intermediate + shape.shared_intermediate * sparse_layers);
  const double of_experts = 3 * hidden * shape.intermediate * sparse_layers;
  shape.experts = static_cast<int>((most - others) / of_experts);
  if (shape.experts < std::max(shape.top_k, num_ranks)) return std::nullopt;
  if (shape.heads % num_ranks != 0 || shape.intermediate % (64 * num_ranks) != 0) {
    return std::nullopt;
  }
  return shape;
}

// As many sequences as there are ranks, and multiples of that.
std::vector<StepCase> CasesOfCache(int num_ranks) {
  std::vector<StepCase> cases = {{1, 1, 64}, {2, 1, 64}, {4, 1, 100}, {16, 1, 64},
                                 {1, 16, 0}, {1, 64, 0}, {1, 200, 0}, {1, 512, 0}};
  for (StepCase& each : cases) each.batch *= num_ranks;
  return cases;
}

std::vector<Trial> TrialsOf(int num_ranks, const MeasureStepsOptions& options) {
  const std::vector<ModelShape>& shapes = options.shapes.empty() ? Shapes() : options.shapes;
  std::vector<StepCase> cases = options.cases;
  if (cases.empty()) cases = num_ranks == 1 ? CasesOfOneRank() : CasesOfSeveralRanks(num_ranks);
  const auto num_cases = static_cast<int>(cases.size());
  // What overlap costs, and how well it is predicted. Few steps tell.
  std::vector<StepCase> large = {{num_ranks, 64, 0}, {num_ranks, 200, 0}, {num_ranks, 512, 0}};
  if (!options.cases.empty()) large.assign(cases.begin(), cases.begin() + std::min(2, num_cases));
  // Small ones first, since they take least.
  std::ranges::stable_sort(cases, {}, &StepCase::num_tokens);
  std::vector<Trial> trials;
  const auto add = [&](size_t index, const strategy::Layout& layout,
                       const strategy::Pipeline& pipeline, const std::vector<StepCase>& steps) {
    Trial& trial = trials.emplace_back();
    trial.model = static_cast<int>(index % shapes.size());
    trial.shape = shapes[index % shapes.size()];
    trial.layout = layout;
    trial.pipeline = pipeline;
    trial.cases = steps;
  };
  // With float32 weights the cache is in float32, too, and other devices have no int8.
  const auto add_int8 = [&](const strategy::Layout& layout) {
    if (options.weights == kernels::WeightFormat::kF32 || options.make_device) return;
    for (size_t i = 0; i < shapes.size(); ++i) {
      add(i, layout, {}, cases);
      trials.back().shape = AttentionOf(trials.back().shape);
      trials.back().int8_kv = true;
      trials.back().share = kShareOfSpecial;
    }
  };
  // Ranks that divide all weights, so that none is there twice.
  const strategy::Layout divided{.attention_tp = num_ranks, .expert_tp = num_ranks};
  const auto add_cached = [&] {
    const std::optional<ModelShape> shape = ShapeOfCache(
        num_ranks, options.weights, static_cast<double>(options.last_level_cache_bytes));
    if (!shape) return;
    add(0, divided, {}, options.cases.empty() ? CasesOfCache(num_ranks) : cases);
    trials.back().shape = *shape;
    trials.back().has_cached_weights = true;
    trials.back().share = kShareOfSpecial;
  };
  if (num_ranks == 1) {
    for (size_t i = 0; i < shapes.size(); ++i) add(i, {}, {}, cases);
    add_int8({});
    add_cached();
    return trials;
  }
  const strategy::Pipeline of_tokens{.chunks = 4};
  const strategy::Pipeline of_experts{.chunks = 8, .cut = strategy::ChunkCut::kExperts};
  const strategy::Pipeline halves{.micro_batches = 2};
  const strategy::Layout experts{.attention_dp = num_ranks, .expert_ep = num_ranks};
  const strategy::Layout heads{.attention_tp = num_ranks, .expert_ep = num_ranks};
  const strategy::Layout slices{.attention_dp = num_ranks, .expert_tp = num_ranks};
  const strategy::Layout all{
      .attention_tp = num_ranks, .expert_tp = num_ranks, .divides_head = true};
  for (size_t i = 0; i < shapes.size(); ++i) add(i, experts, {}, cases);
  add(0, all, {}, cases);
  add(1, slices, {}, cases);
  add(2, heads, {}, cases);
  add(0, experts, of_tokens, large);
  add(1, experts, {.chunks = 8}, large);
  add(0, experts, of_experts, large);
  add(2, experts, halves, large);
  add(0, experts, halves, large);
  add_int8(experts);
  add_cached();
  return trials;
}

bool Overlaps(const strategy::Pipeline& pipeline) {
  return pipeline.chunks > 1 || pipeline.micro_batches > 1;
}

cost::ReferenceSpeed Between(const cost::ReferenceSpeed& a, const cost::ReferenceSpeed& b) {
  return {std::sqrt(a.read_bytes_per_second * b.read_bytes_per_second),
          std::sqrt(a.dot_operations_per_second * b.dot_operations_per_second)};
}

// A step of a trial in all rounds.
struct CaseRuns {
  std::vector<runtime::RecordedStep> steps;
  std::vector<cost::ReferenceSpeed> speeds;
  std::vector<double> changes;  // of the memory's speed from before the step to after it
  bool overlaps = false;
  bool int8_kv = false;
  bool has_cached_weights = false;
  int model = 0;  // of which shape
};

class StepsRunner {
 public:
  StepsRunner(comm::Group& group, hardware::ThreadPool& pool, const kernels::KernelSet& kernels,
              const MeasureStepsOptions& options)
      : group_(group),
        pool_(pool),
        kernels_(kernels),
        options_(options),
        formats_(runtime::DefaultFormats(options.weights)),
        device_(options.make_device ? options.make_device() : device::MakeCpuDevice(kernels, pool)),
        ledger_(options.ledger != nullptr ? *options.ledger : unlimited_) {}

  // Before the first trial. Error: no memory.
  Status Prepare() {
    Result<ReferenceKernel> reference = ReferenceKernel::Create(kernels_, pool_, formats_, ledger_);
    const Status had = reference ? Status() : Status(reference.error());
    if (reference) reference_.emplace(*std::move(reference));
    if (const Status all = comm::AgreeOnSuccess(group_, had); !all) return all;
    copy_bytes_per_second_ = reference_->MeasureCopy(group_);
    unevenness_ = MeasureUnevenness(group_);
    if (kernels::IsInteger(options_.weights)) return {};
    // Where there is no memory for it, plans whose experts are loaded have no price.
    const Result<cost::LoadRates> rates = MeasureLoads(
        group_, formats_.weights, ledger_,
        {.cpus = pool_.cpus(), .num_threads = pool_.size(), .run = [this] { reference_->Run(); }});
    if (rates) load_rates_ = *rates;
    return {};
  }

  // `share`: of the time there is, up to the end of this trial.
  Status RunTrial(const Trial& trial, double share) {
    trial_ends_ = start_ + std::chrono::duration<double>(share * options_.seconds);
    const auto agree = [&](const auto& mine) {
      return comm::AgreeOnSuccess(group_, mine ? Status() : Status(mine.error()));
    };
    auto model = InventedModel::Create(InventSpec(trial.shape), formats_.weights, trial.layout,
                                       group_.rank(), ledger_);
    if (const Status all = agree(model); !all) return all;
    weights_ = (*model)->model_weights().bytes;
    if (trial.has_cached_weights) {
      // What one rank alone has, as the head, counts for all.
      const double measured = group_.size() * static_cast<double>(weights_.size());
      cached_weight_bytes_ =
          kMarginOfCache *
          std::min(measured, kShareOfCache * static_cast<double>(options_.last_level_cache_bytes));
    }
    runtime::TransformerOptions options = OptionsOf(trial, (*model)->whole_spec());
    options.parallel.record = true;
    Result<runtime::Transformer> transformer =
        runtime::Transformer::Create((*model)->weights(), *device_, options, ledger_);
    if (const Status all = agree(transformer); !all) return all;
    // Once more without a record of the tasks, for what a step takes besides them.
    options.parallel.record = false;
    options.num_kv_blocks = group_.size() + 1;
    Result<runtime::Transformer> unrecorded =
        runtime::Transformer::Create((*model)->weights(), *device_, options, ledger_);
    if (const Status all = agree(unrecorded); !all) return all;
    WriteCache(transformer->kv_cache());
    WriteCache(unrecorded->kv_cache());
    Measure(trial, *transformer);
    if (!Overlaps(trial.pipeline) && !trial.int8_kv && !trial.has_cached_weights)
      MeasureOverhead(trial, *transformer, *unrecorded);
    for (runtime::Transformer* each : {&*transformer, &*unrecorded}) {
      if (group_.rank() == 0) {
        each->EndSteps();
      } else {
        each->FollowSteps();
      }
    }
    return {};
  }

  cost::StepCosts Fit() const {
    if (group_.rank() != 0) return {};
    std::vector<double> reads;
    std::vector<double> dots;
    for (const CaseRuns& runs : runs_) {
      for (const cost::ReferenceSpeed& speed : runs.speeds) {
        reads.push_back(speed.read_bytes_per_second);
        dots.push_back(speed.dot_operations_per_second);
      }
    }
    const cost::ReferenceSpeed reference = {Median(reads), Median(dots)};
    std::vector<cost::RecordedSizes> sizes(runs_.size());
    std::vector<cost::SampledStep> steps;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const CaseRuns& runs = runs_[i];
      for (const auto& [size, value] : runs.steps.front().sizes) sizes[i].Set(size, value);
      cost::SampledStep& step = steps.emplace_back();
      step.schedule = runs.steps.front().schedule.get();
      step.sizes = [&own = sizes[i]](const schedule::Size& size) { return own.at(size); };
      const double least = *std::min_element(runs.changes.begin(), runs.changes.end());
      for (size_t round = 0; round < runs.steps.size(); ++round) {
        // How fast the machine was in between is not known where that changed.
        if (runs.changes[round] > std::max(kMostChange, least)) continue;
        step.timelines.push_back(runs.steps[round].timeline);
        step.states.push_back(reference.StateAt(runs.speeds[round]));
      }
      step.overlaps = runs.overlaps;
      step.int8_kv = runs.int8_kv;
      step.has_cached_weights = runs.has_cached_weights;
      step.fold = static_cast<int>(i);
      step.model = runs.model;
    }
    cost::StepCosts costs = cost::FitStepCosts(steps, reference, {.unevenness = unevenness_});
    costs.num_ranks = group_.size();
    costs.num_threads = pool_.size();
    costs.weights = kernels::Name(options_.weights);
    costs.version = kVersion;
    costs.date = hardware::CurrentDate();
    costs.copy_bytes_per_second = copy_bytes_per_second_;
    if (load_rates_) {
      const double bytes = options_.weights == kernels::WeightFormat::kF32 ? 4 : 2;
      costs.tasks[static_cast<size_t>(schedule::TaskKind::kLoadExperts)] =
          cost::LoadCost(*load_rates_, bytes);
      costs.load_beside = cost::LoadCostBeside(*load_rates_, bytes);
    }
    costs.step_once = std::max(0.0, Median(overheads_));
    costs.cached_weight_bytes = cached_weight_bytes_;
    costs.overlapped_held_out = TryOnOverlapped(steps, costs);
    costs.interval_stretch = IntervalStretch(steps, costs);
    return costs;
  }

 private:
  runtime::TransformerOptions OptionsOf(const Trial& trial, const model::ModelSpec& whole) const {
    const int groups = trial.layout.attention_dp;
    runtime::TransformerOptions options{
        .activations = formats_.activations,
        .kv = trial.int8_kv ? kernels::KvFormat::kInt8 : formats_.kv};
    options.max_step_tokens = 1;
    for (const StepCase& each : trial.cases) {
      options.max_step_tokens = std::max(options.max_step_tokens, TokensOfGroup(each, groups));
      options.num_kv_blocks = std::max(options.num_kv_blocks, NumKvBlocks(each, groups));
      options.context = std::max(options.context, each.context + each.tokens);
    }
    options.parallel.roles = trial.layout;
    options.parallel.pipeline = trial.pipeline;
    options.parallel.wire = options_.wire;
    options.parallel.group = group_.size() > 1 ? &group_ : nullptr;
    options.parallel.whole_spec = &whole;
    return options;
  }

  // Weights, keys and values are in no cache before a step, as in models that are much larger than
  // caches. All else is where a step before it has left it: code, rows, and what exchanges need. If
  // caches were emptied of that, too, a router of one row would seem to take 0.1 ms, and an
  // exchange of some bytes twice as long as it does (docs/results/predictions.md).
  void DropWeights(runtime::Transformer& transformer) {
    constexpr size_t kPiece = size_t{1} << 18;
    const auto pieces = static_cast<int64_t>((weights_.size() + kPiece - 1) / kPiece);
    pool_.ParallelFor(pieces, [&](int64_t piece, int) {
      const auto first = static_cast<size_t>(piece) * kPiece;
      hardware::DropFromCaches(weights_.subspan(first, std::min(kPiece, weights_.size() - first)));
    });
    const device::KvCache& cache = transformer.kv_cache();
    pool_.ParallelFor(cache.num_blocks(), [&](int64_t block, int) {
      for (int layer = 0; layer < cache.num_layers(); ++layer) {
        hardware::DropFromCaches({cache.Address(layer, static_cast<int>(block)),
                                  static_cast<size_t>(cache.BlockBytes(layer))});
      }
    });
  }

  double Run(runtime::Transformer& transformer, const CaseSequences& sequences,
             bool drops_weights = true) {
    if (drops_weights) DropWeights(transformer);
    group_.Barrier("measuring steps");
    if (group_.rank() != 0) {
      transformer.FollowStep();
      return 0;
    }
    const auto start = Clock::now();
    const Status done =
        transformer.Forward(sequences.step(), [](int, int, const runtime::Logits&) {});
    CHECK(done.ok(), "{}", done.error().message);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void Measure(const Trial& trial, runtime::Transformer& transformer) {
    runtime::RecordedStep last;
    transformer.ObserveSteps([&last](const runtime::RecordedStep& step) { last = step; });
    const size_t first = runs_.size();
    runs_.resize(first + trial.cases.size());
    std::vector<CaseSequences> sequences;
    for (size_t i = 0; i < trial.cases.size(); ++i) {
      sequences.emplace_back(trial.cases[i], trial.layout.attention_dp, trial.shape.vocab, i + 1);
    }
    // The largest one touches all memory that steps work in.
    const auto largest = std::ranges::max_element(
        trial.cases, {}, [](const StepCase& one) { return one.num_tokens(); });
    Run(transformer, sequences[static_cast<size_t>(largest - trial.cases.begin())]);
    for (int round = 0; round < options_.rounds && (round == 0 || HasTime()); ++round) {
      cost::ReferenceSpeed before = reference_->Measure(group_);
      for (size_t i = 0; i < trial.cases.size(); ++i) {
        // Over a slow link one round may take longer than there is: the smallest steps must do.
        if (round == 0 && i >= kFewestCases && !HasTime()) break;
        // The reference kernels have taken the weights' place in the cache.
        if (trial.has_cached_weights) Run(transformer, sequences[i], /*drops_weights=*/false);
        Run(transformer, sequences[i], !trial.has_cached_weights);
        const cost::ReferenceSpeed after = reference_->Measure(group_);
        CaseRuns& runs = runs_[first + i];
        runs.steps.push_back(last);
        runs.speeds.push_back(Between(before, after));
        runs.changes.push_back(
            std::abs(std::log(after.read_bytes_per_second / before.read_bytes_per_second)));
        runs.overlaps = Overlaps(trial.pipeline);
        runs.int8_kv = trial.int8_kv;
        runs.has_cached_weights = trial.has_cached_weights;
        runs.model = trial.model;
        before = after;
      }
    }
    transformer.ObserveSteps({});
    std::erase_if(runs_, [](const CaseRuns& runs) { return runs.steps.empty(); });
  }

  // Rank 0's clock decides.
  bool HasTime() {
    if (options_.seconds <= 0) return true;
    return comm::FromRankZero(group_, Clock::now() < trial_ends_, "asking for time");
  }

  // The whole of small steps that nobody records, and the tasks of the same steps in turn.
  void MeasureOverhead(const Trial& trial, runtime::Transformer& recorded,
                       runtime::Transformer& unrecorded) {
    const int num_turns = HasTime() ? 10 : 2;
    const StepCase small{.batch = trial.layout.attention_dp, .tokens = 1, .context = 3};
    const CaseSequences sequences(small, trial.layout.attention_dp, trial.shape.vocab, 99);
    Run(unrecorded, sequences);  // its first step takes the memory's pages
    double tasks = 0;
    recorded.ObserveSteps(
        [&tasks](const runtime::RecordedStep& step) { tasks = step.timeline.seconds(); });
    for (int turn = 0; turn < num_turns; ++turn) {
      const double whole = Run(unrecorded, sequences);
      Run(recorded, sequences);
      if (group_.rank() == 0) overheads_.push_back(whole - tasks);
    }
    recorded.ObserveSteps({});
  }

  comm::Group& group_;
  hardware::ThreadPool& pool_;
  const kernels::KernelSet& kernels_;
  const MeasureStepsOptions& options_;
  runtime::Formats formats_;
  std::unique_ptr<device::Device> device_;
  memory::Ledger unlimited_;  // what cannot be had is an error of its own
  memory::Ledger& ledger_;
  std::span<const std::byte> weights_;  // of the trial's model, what of it this rank has
  std::optional<ReferenceKernel> reference_;
  double copy_bytes_per_second_ = 0;
  double unevenness_ = 0;
  double cached_weight_bytes_ = 0;
  std::optional<cost::LoadRates> load_rates_;  // of formats that experts are loaded in
  std::chrono::time_point<Clock, std::chrono::duration<double>> start_ = Clock::now();
  std::chrono::time_point<Clock, std::chrono::duration<double>> trial_ends_ = {};
  std::vector<CaseRuns> runs_;
  std::vector<double> overheads_;
};

std::string Describe(const Trial& trial) {
  return fmt::format("{} experts of {} x {}{}, {} kinds of steps", trial.shape.experts,
                     trial.shape.hidden, trial.shape.intermediate,
                     trial.int8_kv              ? ", keys and values in int8"
                     : trial.has_cached_weights ? ", weights in the last-level cache"
                     : Overlaps(trial.pipeline) ? ", overlapped"
                                                : "",
                     trial.cases.size());
}

}  // namespace

Result<cost::StepCosts> MeasureSteps(comm::Group& group, hardware::ThreadPool& pool,
                                     const kernels::KernelSet& kernels,
                                     const MeasureStepsOptions& options) {
  StepsRunner runner(group, pool, kernels, options);
  if (const Status ready = runner.Prepare(); !ready) {
    return ready.error();
  }
  const std::vector<Trial> trials = TrialsOf(group.size(), options);
  double all = 0;
  for (const Trial& trial : trials) all += trial.share;
  double until = 0;
  for (const Trial& trial : trials) {
    if (options.progress && group.rank() == 0) options.progress(Describe(trial));
    until += trial.share;
    if (const Status done = runner.RunTrial(trial, until / all); !done) return done.error();
  }
  return runner.Fit();
}

}  // namespace convene::evaluate
