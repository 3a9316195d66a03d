#include "evaluate/try_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/environment.h"
#include "base/plain_number.h"
#include "comm/agree.h"
#include "comm/from_rank_zero.h"
#include "device/cpu/cpu_device.h"
#include "engine/announce_load.h"
#include "engine/crossovers.h"
#include "engine/model_source.h"
#include "engine/rank_options.h"
#include "engine/same_model.h"
#include "evaluate/reference_kernel.h"
#include "evaluate/step_case.h"
#include "evaluate/trial_steps.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "runtime/transformer.h"
#include "weights/phased_weights.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostTurns = 10;  // there and back; more say no more

double SecondsAfter(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Weights as one plan or several place them.
struct PlacedWeights {
  kernels::WeightFormat format = kernels::WeightFormat::kBf16;
  weights::Share share;
  weights::ModelWeights weights;
  std::unique_ptr<weights::WeightStore> store;
};

struct ReadyPlan {
  std::vector<StepToRun> steps;
  std::optional<runtime::Transformer> transformer;
};

class Runner {
 public:
  Runner(comm::Group& group, const std::string& directory, const TrialQuestion& question)
      : group_(group), directory_(directory), question_(question) {}

  // On all ranks: the means to run with.
  Status Prepare() {
    if (group_.size() > 1) {
      if (Status same = engine::AgreeOnFiles(group_, directory_); !same) return same;
    }
    if (Status all = Agree(FindMeans()); !all) return all;
    if (group_.size() > 1) {
      if (Status same = engine::AgreeOnTensors(group_, digests_); !same) return same;
    }
    pool_ = std::make_unique<hardware::ThreadPool>(std::move(cpus_));
    if (Status all = Agree(pool_->started()); !all) return all;
    const Result<hardware::Profile> kept = hardware::LoadProfile(hardware::ProfilePath());
    const auto profile = kept ? std::optional(*kept) : std::nullopt;
    const engine::ComputesWith here =
        profile ? engine::ComputesHereWith(kernels_.name, pool_->cpus()) : engine::ComputesWith();
    streaming_ = engine::StreamingOf(profile, here);
    if (streaming_) kernels_.streaming = &*streaming_;
    crossovers_ = engine::AgreeOnCrossovers(&group_, engine::CrossoversOf(profile, here));
    device_ = device::MakeCpuDevice(kernels_, *pool_);
    for (const plan::Plan& plan : question_.plans) {
      const kernels::WeightFormat format = FormatOf(plan);
      if (references_.contains(format)) continue;
      auto reference = ReferenceKernel::Create(kernels_, *pool_, FormatsOf(format), *ledger_);
      const Status mine = reference ? Status() : Status(reference.error());
      if (Status all = Agree(mine); !all) return all;
      references_.emplace(format, *std::move(reference));
    }
    return {};
  }

  Result<Trials> Run() {
    trials_.plans.resize(question_.plans.size());
    ready_.resize(question_.plans.size());
    std::vector<double> once(question_.plans.size(), 0);
    for (size_t i = 0; i < ready_.size(); ++i) {
      TriedPlan& tried = trials_.plans[i];
      if (i > 0 && question_.most_load_seconds > 0 && !MayLoad(i)) continue;
      const auto start = Clock::now();
      const Status loaded = Agree(Load(i));
      tried.load_seconds = SecondsAfter(start);
      if (!loaded) {
        tried.why_not = loaded.error().message;
        // It may have failed on another rank alone.
        if (std::optional<runtime::Transformer>& mine = ready_[i].transformer) {
          mine->Abandon();
          mine.reset();
        }
        continue;
      }
      // Caches, pages and branch predictors are cold: nothing is kept of it but how long it takes.
      const auto warming = Clock::now();
      Once(i);
      once[i] = SecondsAfter(warming);
      trials_.run_seconds += once[i];
    }
    TakeTurns(once);
    End();
    if (failed_) return *failed_;
    return std::move(trials_);
  }

 private:
  Status Agree(const Status& mine) { return comm::AgreeOnSuccess(group_, mine); }

  static kernels::WeightFormat FormatOf(const plan::Plan& plan) {
    const auto format = kernels::WeightFormatFromName(plan.weights);
    CHECK(format.has_value(), "a plan without a format of weights");
    return *format;
  }

  // Those of packed weights, where these have more to say: the columns of a scale.
  runtime::Formats FormatsOf(kernels::WeightFormat format) const {
    runtime::Formats formats = runtime::DefaultFormats(format);
    if (packed_formats_) formats.weights = *packed_formats_;
    return formats;
  }

  std::optional<uint64_t> MemoryBudget() const {
    const std::vector<uint64_t>& budgets = question_.memory_budgets;
    if (budgets.empty()) return std::nullopt;
    return budgets.size() == 1 ? budgets.front() : budgets.at(static_cast<size_t>(group_.rank()));
  }

  Status FindMeans() {
    const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
    if (!kernels) return kernels.error();
    kernels_ = **kernels;
    const int threads = question_.plans.front().num_threads;
    Result<std::vector<int>> cpus = hardware::CpusForThisRank(
        LocalRankFromLauncher(), threads > 0 ? std::optional(threads) : std::nullopt);
    if (!cpus) return cpus.error();
    cpus_ = *std::move(cpus);
    Result<memory::Tier> tier = memory::HostTier(LocalRankFromLauncher().count, cpus_);
    if (!tier) return tier.error();
    engine::LimitTo(MemoryBudget(), &*tier);
    ledger_.emplace(*std::move(tier));
    const Result<engine::ModelSource> source = engine::ModelSource::Open(directory_);
    if (!source) return source.error();
    spec_ = source->spec();
    digests_ = source->known_digests();
    if (source->packed() != nullptr) packed_formats_ = source->packed()->formats;
    return {};
  }

  // On all ranks: whether rank 0 has the time to load the weights of a plan, which should take as
  // long as those of the first one.
  bool MayLoad(size_t index) {
    double loaded = 0;
    for (const TriedPlan& tried : trials_.plans) loaded += tried.load_seconds;
    const double one = trials_.plans.front().load_seconds;
    const engine::LoadOptions options = OptionsOf(index);
    const bool is_there = FindPlaced(FormatOf(options.plan), engine::ShareOf(options)) != nullptr;
    const bool fits = is_there || loaded + one <= question_.most_load_seconds;
    if (Told(fits ? 1 : 0) != 0) return true;
    trials_.plans[index].why_not = fmt::format(
        "loading its weights would take about {} s, and {} s is what trying plans may cost",
        PlainNumber(one, 2), PlainNumber(question_.most_load_seconds, 2));
    return false;
  }

  // Experts that move lie as the plan needs them that ran last, and another plan would look for
  // them elsewhere: such a plan has weights of its own.
  PlacedWeights* FindPlaced(kernels::WeightFormat format, const weights::Share& share) const {
    if (share.decode) return nullptr;
    for (const auto& placed : placed_) {
      if (placed->format == format && placed->share == share) return placed.get();
    }
    return nullptr;
  }

  Result<PlacedWeights*> Place(const engine::LoadOptions& options, TriedPlan& tried) {
    const kernels::WeightFormat format = FormatOf(options.plan);
    const weights::Share share = engine::ShareOf(options);
    if (PlacedWeights* placed = FindPlaced(format, share)) return placed;
    tried.loaded_anew = true;
    Result<engine::ModelSource> source = engine::ModelSource::Open(directory_);
    if (!source) return source.error();
    Result<weights::ModelWeights> loaded = std::move(*source).Load(
        {.formats = FormatsOf(format).weights, .share = share}, *pool_, *ledger_, {});
    if (!loaded) return loaded.error();
    auto placed = std::make_unique<PlacedWeights>();
    placed->format = format;
    placed->share = share;
    placed->weights = *std::move(loaded);
    if (share.decode) {
      placed->store = std::make_unique<weights::PhasedWeights>(placed->weights, spec_, share);
    } else {
      placed->store = std::make_unique<weights::ResidentWeights>(placed->weights);
    }
    return placed_.emplace_back(std::move(placed)).get();
  }

  engine::LoadOptions OptionsOf(size_t index) const {
    const plan::Plan& plan = question_.plans[index];
    return {.max_step_tokens = plan.step_tokens_for(static_cast<int>(question_.sequences.size()),
                                                    question_.step_tokens),
            .plan = plan,
            .experiment = {.router = question_.router},
            .record = true,
            .group = group_.size() > 1 ? &group_ : nullptr};
  }

  Status Load(size_t index) {
    const plan::Plan& plan = question_.plans[index];
    if (plan.spilled_kv) {
      return Error{"keys and values on a disk are not tried: convene batch runs such a plan"};
    }
    if (plan.experts_in_memory) {
      return Error{
          "experts on a disk are not tried, since trials keep all weights in memory: compare runs "
          "with convene bench"};
    }
    ReadyPlan& ready = ready_[index];
    ready.steps = StepsOf(question_, plan, spec_);
    int longest = 2;
    int num_blocks = 1;
    for (const StepToRun& step : ready.steps) {
      num_blocks = std::max(num_blocks, step.num_blocks());
      longest = std::max(longest, step.longest());
    }
    const engine::LoadOptions options = OptionsOf(index);
    Result<PlacedWeights*> placed = Place(options, trials_.plans[index]);
    if (!placed) return placed.error();
    runtime::TransformerOptions parts =
        engine::TransformerOptionsOf(options, FormatsOf(FormatOf(plan)), longest);
    if (plan.kv_cache == "int8") parts.kv = kernels::KvFormat::kInt8;
    parts.num_kv_blocks = num_blocks;
    parts.parallel.whole_spec = &spec_;
    parts.dense_from_rows = crossovers_.dense_from_rows;
    if (plan.gemm != plan::GemmChoice::kAuto) {
      parts.dense_from_rows = plan.gemm == plan::GemmChoice::kDense ? 1 : 0;
    }
    parts.parallel.ExpandFrom(crossovers_.expand_from_tokens);
    Result<runtime::Transformer> transformer =
        runtime::Transformer::Create(*(*placed)->store, *device_, parts, *ledger_);
    if (!transformer) return transformer.error();
    WriteCache(transformer->kv_cache());
    ready.transformer = *std::move(transformer);
    if (group_.rank() != 0) return {};
    ready.transformer->ObserveSteps(
        [this](const runtime::RecordedStep& step) { ran_.push_back(step); });
    return {};
  }

  // On rank 0 the seconds from its beginning until all ranks are through with its tasks; telling
  // rank 0 of them comes after that. What the encoder does before it is part of it, and `ran_` then
  // has both.
  double RunStep(ReadyPlan& ready, StepToRun& step, uint64_t number) {
    const bool encodes = !step.inputs().empty();
    if (group_.rank() != 0) {
      if (encodes) ready.transformer->FollowStep();
      ready.transformer->FollowStep();
      return 0;
    }
    step.DrawTokens(number);
    ran_.clear();
    double seconds = 0;
    // Where it fails, the others wait for the step all the same.
    if (encodes) {
      seconds += Timed([&] { return ready.transformer->Encode(step.inputs(), {}); });
    }
    return seconds + Timed([&] {
             return ready.transformer->Forward(
                 step.step(), [](int, int, const runtime::Logits&) {}, step.phase());
           });
  }

  double Timed(const std::function<Status()>& run) {
    const auto start = Clock::now();
    const Status done = run();
    if (!done && !failed_) failed_ = done.error();
    const double began = std::chrono::duration<double>(start.time_since_epoch()).count();
    return ran_.back().start - began + ran_.back().timeline.seconds();
  }

  TrialRun Once(size_t index) {
    ReadyPlan& ready = ready_[index];
    ReferenceKernel& reference = references_.at(FormatOf(question_.plans[index]));
    TrialRun run;
    // Every run has tokens of its own: several plans may have the same weights, and the experts
    // that one has just chosen are in a cache.
    const uint64_t first = (kDecodeSteps + 1) * num_runs_++;
    const cost::ReferenceSpeed before = reference.Measure(group_);
    // Ranks are not through with that at the same time, and a step would be as long as the wait.
    group_.Barrier("trying plans");
    for (StepToRun& step : ready.steps) {
      const bool is_decode = step.phase() == strategy::Phase::kDecode;
      // Experts that move between the phases do it once for many steps, and not in one of these.
      if (question_.plans[index].changes_layout()) {
        const auto start = Clock::now();
        ChangePhase(ready, step.phase());
        run.transition_seconds += SecondsAfter(start);
      }
      double seconds = RunStep(ready, step, first);
      if (is_decode) {
        // The first one behind prompts, or behind a change of the experts' division, takes longer
        // than the many behind it: what it takes more counts once, where there was a change.
        const double of_first = std::exchange(seconds, 0);
        for (uint64_t i = 1; i <= kDecodeSteps; ++i) seconds += RunStep(ready, step, first + i);
        run.decode_seconds = seconds / kDecodeSteps;
        if (question_.plans[index].changes_layout()) {
          run.transition_seconds += std::max(0.0, of_first - run.decode_seconds);
        }
      } else {
        run.prefill_seconds += step.count() * seconds;
      }
      run.steps.insert(run.steps.end(), ran_.begin(), ran_.end());
    }
    const cost::ReferenceSpeed after = reference.Measure(group_);
    run.speed = {.read_bytes_per_second =
                     std::sqrt(before.read_bytes_per_second * after.read_bytes_per_second),
                 .dot_operations_per_second =
                     std::sqrt(before.dot_operations_per_second * after.dot_operations_per_second)};
    return run;
  }

  void ChangePhase(ReadyPlan& ready, strategy::Phase phase) {
    if (group_.rank() != 0) {
      ready.transformer->FollowStep();
      return;
    }
    const Status moved = ready.transformer->ChangePhase(phase);
    if (!moved && !failed_) failed_ = moved.error();
  }

  // Rank 0's, on all ranks.
  int Told(int value) { return comm::FromRankZero(group_, value, "how plans are tried"); }

  // There and back: what drifts evenly is the same for all. `once`: seconds of a run of each.
  void TakeTurns(const std::vector<double>& once) {
    std::vector<size_t> order;
    double turn = 0;
    for (size_t i = 0; i < ready_.size(); ++i) {
      if (!ready_[i].transformer) continue;
      const double with = turn + 2 * once[i];
      // Two plans are compared whatever it takes.
      const bool fits = order.size() < 2 || trials_.run_seconds + with <= question_.seconds;
      if (Told(fits ? 1 : 0) == 0) {
        trials_.plans[i].why_not =
            fmt::format("there is no time for it: a run takes {} s, and there are {} s for all",
                        PlainNumber(once[i], 2), PlainNumber(question_.seconds));
        continue;
      }
      turn = with;
      order.push_back(i);
    }
    if (order.empty()) return;
    for (int turns = 0; turns < kMostTurns; ++turns) {
      const bool fits = turns == 0 || trials_.run_seconds + turn <= question_.seconds;
      if (Told(fits && !failed_ ? 1 : 0) == 0) break;
      const auto start = Clock::now();
      for (size_t i : order) trials_.plans[i].runs.push_back(Once(i));
      for (size_t i = order.size(); i-- > 0;) {
        trials_.plans[order[i]].runs.push_back(Once(order[i]));
      }
      trials_.run_seconds += SecondsAfter(start);
    }
  }

  void End() {
    for (ReadyPlan& ready : ready_) {
      if (!ready.transformer) continue;
      if (group_.rank() == 0) {
        ready.transformer->EndSteps();
      } else {
        ready.transformer->FollowSteps();
      }
    }
  }

  comm::Group& group_;
  const std::string& directory_;
  const TrialQuestion& question_;
  // In the order in which they depend on each other.
  std::optional<memory::Ledger> ledger_;
  kernels::KernelSet kernels_;
  std::optional<kernels::StreamingChoice> streaming_;
  std::vector<int> cpus_;
  std::unique_ptr<hardware::ThreadPool> pool_;
  model::ModelSpec spec_;
  std::vector<NamedDigest> digests_;
  std::optional<weights::WeightFormats> packed_formats_;
  engine::Crossovers crossovers_;
  std::unique_ptr<device::Device> device_;
  std::map<kernels::WeightFormat, ReferenceKernel> references_;
  std::vector<std::unique_ptr<PlacedWeights>> placed_;
  std::vector<ReadyPlan> ready_;
  std::vector<runtime::RecordedStep> ran_;  // on rank 0, since the last step began
  uint64_t num_runs_ = 0;
  std::optional<Error> failed_;
  Trials trials_;
};

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double each : values) sum += each;
  return sum / static_cast<double>(values.size());
}

}  // namespace

nlohmann::json ToJson(const TrialQuestion& question) {
  nlohmann::json json = {{"prompt_tokens", question.prompt_tokens},
                         {"context", question.context},
                         {"step_tokens", question.step_tokens},
                         {"expand_from_tokens", question.expand_from_tokens},
                         {"router_skew", question.router.skew},
                         {"num_experts_skew", question.router.num_experts},
                         {"router_shares", question.router.shares},
                         {"memory_budgets", question.memory_budgets},
                         {"seconds", question.seconds},
                         {"most_load_seconds", question.most_load_seconds},
                         {"plans", nlohmann::json::array()},
                         {"sequences", nlohmann::json::array()}};
  for (const plan::Plan& plan : question.plans) {
    json["plans"].push_back(nlohmann::json(plan::ToJson(plan)));
  }
  for (const planner::RequestLengths& each : question.sequences) {
    json["sequences"].push_back({each.prompt_tokens, each.gen_tokens});
  }
  return json;
}

TrialQuestion TrialQuestionFromJson(const nlohmann::json& json) {
  TrialQuestion question{
      .prompt_tokens = json.at("prompt_tokens").get<int>(),
      .context = json.at("context").get<int>(),
      .step_tokens = json.at("step_tokens").get<int>(),
      .expand_from_tokens = json.at("expand_from_tokens").get<int>(),
      .router = {.skew = json.at("router_skew").get<double>(),
                 .num_experts = json.at("num_experts_skew").get<int>(),
                 .shares = json.at("router_shares").get<std::vector<std::vector<double>>>()},
      .memory_budgets = json.at("memory_budgets").get<std::vector<uint64_t>>(),
      .seconds = json.at("seconds").get<double>(),
      .most_load_seconds = json.at("most_load_seconds").get<double>()};
  for (const auto& each : json.at("plans")) {
    Result<plan::Plan> plan = plan::PlanFromJson(each);
    CHECK(plan.ok(), "rank 0 sent a plan: {}", plan.error().message);
    question.plans.push_back(*std::move(plan));
  }
  for (const auto& each : json.at("sequences")) {
    question.sequences.push_back({each.at(0).get<int>(), each.at(1).get<int>()});
  }
  return question;
}

Result<Trials> TryPlans(comm::Group& group, const std::string& directory,
                        const TrialQuestion& question) {
  CHECK(!question.plans.empty() && !question.sequences.empty());
  Runner runner(group, directory, question);
  if (const Status ready = runner.Prepare(); !ready) return ready.error();
  return runner.Run();
}

Result<Trials> AskForTrials(comm::Group& group, const std::string& directory,
                            const TrialQuestion& question) {
  engine::AnnounceTrial(group, directory, ToJson(question).dump());
  return TryPlans(group, directory, question);
}

void FollowTrials(comm::Group& group, const std::string& directory, const std::string& question) {
  const nlohmann::json json = nlohmann::json::parse(question, nullptr, /*allow_exceptions=*/false);
  CHECK(json.is_object(), "rank 0 asked for trials");
  static_cast<void>(TryPlans(group, directory, TrialQuestionFromJson(json)));
}

Judgement Judge(std::span<const std::vector<double>> scores) {
  Judgement judgement;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].empty()) continue;
    const auto [least, most] = std::ranges::minmax(scores[i]);
    judgement.noise = std::max(judgement.noise, most / least - 1);
    const bool is_better =
        judgement.best < 0 || Mean(scores[i]) < Mean(scores[static_cast<size_t>(judgement.best)]);
    if (is_better) judgement.best = static_cast<int>(i);
  }
  if (judgement.best <= 0 || scores.front().empty()) {
    judgement.is_certain = judgement.best == 0;
    return judgement;
  }
  const std::vector<double>& best = scores[static_cast<size_t>(judgement.best)];
  const std::vector<double>& first = scores.front();
  const bool is_enough = best.size() >= kFewestRuns && first.size() >= kFewestRuns;
  judgement.is_certain = is_enough && std::ranges::max(best) < std::ranges::min(first) &&
                         Mean(first) / Mean(best) - 1 > judgement.noise;
  return judgement;
}

}  // namespace convene::evaluate
