#include "evaluate/step_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cost/fit_step_costs.h"
#include "cost/task_parts.h"
#include "evaluate/machine_profile_file.h"
#include "hardware/profile.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::evaluate {
using runtime::RecordedStep;

namespace {

constexpr size_t kSampleSteps = 32;
// From so many other steps of a kind on, their times say more than the machine's peaks.
constexpr size_t kEnoughSteps = 3;

cost::RecordedSizes SizesOf(const RecordedStep& step) {
  cost::RecordedSizes sizes;
  for (const auto& [size, value] : step.sizes) sizes.Set(size, value);
  return sizes;
}

bool LoadsExperts(const RecordedStep& step) {
  return std::ranges::any_of(step.schedule->tasks, [](const schedule::Task& task) {
    return task.kind == schedule::TaskKind::kLoadExperts;
  });
}

}  // namespace

void StepWatch::Sample::Add(const RecordedStep& step) {
  if (num_seen++ % stride != 0) return;  // most steps are not even copied
  steps.push_back(step);
  if (steps.size() < kSampleSteps) return;
  // Every other one goes, and half as many come from here on.
  std::vector<RecordedStep> kept;
  for (size_t i = 0; i < steps.size(); i += 2) kept.push_back(std::move(steps[i]));
  steps = std::move(kept);
  stride *= 2;
}

void StepWatch::SetSpeeds(const cost::ReferenceSpeed& before, const cost::ReferenceSpeed& after) {
  speed_ = {.read_bytes_per_second =
                std::sqrt(before.read_bytes_per_second * after.read_bytes_per_second),
            .dot_operations_per_second =
                std::sqrt(before.dot_operations_per_second * after.dot_operations_per_second)};
}

void StepWatch::PreferKeptCosts() {
  Result<cost::MachineProfile> profile = LoadMachineProfile(hardware::ProfilePath());
  if (profile) preferred_ = *std::move(profile);
}

StepWatch::Kind StepWatch::KindOf(const RecordedStep& step) {
  return step.changes_to == strategy::Phase::kPrefill ? Kind::kToPrefill
         : step.changes_to.has_value()                ? Kind::kToDecode
         : step.encoder                               ? Kind::kEncode
         : LoadsExperts(step)                         ? Kind::kLoading
         : step.num_tokens > step.num_sequences       ? Kind::kPrefill
                                                      : Kind::kDecode;
}

void StepWatch::See(const RecordedStep& step, bool keeps_steps) {
  expert_tokens_.resize(std::max(expert_tokens_.size(), step.expert_tokens.size()));
  for (size_t layer = 0; layer < step.expert_tokens.size(); ++layer) {
    const std::vector<int64_t>& counts = step.expert_tokens[layer];
    expert_tokens_[layer].resize(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) expert_tokens_[layer][i] += counts[i];
  }
  if (!keeps_steps) return;
  if (first_start_ < 0) first_start_ = step.start;
  const Kind kind = KindOf(step);
  samples_[kind].Add(step);
  Sample& largest = largest_[kind];
  const int64_t most = largest.steps.empty() ? 0 : largest.steps.front().num_tokens;
  if (step.num_tokens < most) return;
  if (step.num_tokens > most) largest = {};
  largest.Add(step);
}

std::string StepWatch::NameOf(Kind kind, const RecordedStep& step) {
  if (kind == Kind::kToPrefill) return "experts move to their division in prefill";
  if (kind == Kind::kToDecode) return "experts move to their division in decode";
  const char* name = kind == Kind::kEncode                              ? "encode"
                     : kind == Kind::kPrefill || kind == Kind::kLoading ? "prefill"
                                                                        : "decode";
  return fmt::format("{}, {} token{} of {} sequence{}{}", name, step.num_tokens,
                     step.num_tokens == 1 ? "" : "s", step.num_sequences,
                     step.num_sequences == 1 ? "" : "s",
                     kind == Kind::kLoading ? ", beside which decode's experts come" : "");
}

// The one that took the median time.
const RecordedStep& StepWatch::Typical(const std::vector<RecordedStep>& steps) {
  std::vector<const RecordedStep*> order;
  for (const RecordedStep& step : steps) order.push_back(&step);
  std::stable_sort(order.begin(), order.end(), [](const RecordedStep* a, const RecordedStep* b) {
    return a->timeline.seconds() < b->timeline.seconds();
  });
  return *order[(order.size() - 1) / 2];
}

drawing::TracedStep StepWatch::TraceOf(const RecordedStep& step) const {
  return Traced(KindOf(step), step);
}

drawing::Trace StepWatch::MakeTrace() const {
  drawing::Trace trace{.steps = {},
                       .weights = weights_,
                       .int8_kv = int8_kv_,
                       .num_threads = num_threads_,
                       .run = run_};
  for (const auto& [kind, sample] : samples_) {
    // Of decoding the usual step, of prefill and encoding one of the largest.
    const Sample& from = kind == Kind::kDecode ? sample : largest_.at(kind);
    trace.steps.push_back(Traced(kind, Typical(from.steps)));
  }
  std::ranges::sort(trace.steps, [](const auto& a, const auto& b) { return a.start < b.start; });
  return trace;
}

drawing::TracedStep StepWatch::Traced(Kind kind, const RecordedStep& chosen) const {
  const cost::RecordedSizes sizes = SizesOf(chosen);
  drawing::TracedStep traced = {
      .name = NameOf(kind, chosen),
      .start = chosen.start - first_start_,
      .schedule = drawing::WithAmounts(*chosen.schedule,
                                       [&](const schedule::Size& size) { return sizes.at(size); }),
      .measured = chosen.timeline,
      .sent_bytes = chosen.sent_bytes,
      .read_bytes_per_second = speed_.read_bytes_per_second,
      .dot_operations_per_second = speed_.dot_operations_per_second};
  for (const schedule::Task& task : chosen.schedule->tasks) {
    const cost::TaskParts parts =
        cost::PartsOf(task, [&](const schedule::Size& size) { return sizes.at(size); });
    traced.parts.push_back({.weight_bytes = parts.weight_bytes,
                            .groups = parts.groups,
                            .score_flops = parts.score_flops,
                            .cache_bytes = parts.cache_bytes});
  }
  if (kind == Kind::kPrefill || kind == Kind::kLoading || kind == Kind::kDecode)
    traced.expert_tokens = chosen.expert_tokens;
  Predict(kind, chosen, traced);
  return traced;
}

// Of the plan itself, with whatever its tasks share and run beside.
cost::StepCosts StepWatch::FitTo(const std::vector<const RecordedStep*>& steps) {
  std::vector<cost::RecordedSizes> recorded;
  for (const RecordedStep* seen : steps) recorded.push_back(SizesOf(*seen));
  std::vector<cost::SampledStep> sampled;
  for (size_t i = 0; i < steps.size(); ++i) {
    sampled.push_back(
        {.schedule = steps[i]->schedule.get(),
         .sizes = [&recorded, i](const schedule::Size& size) { return recorded[i].at(size); },
         .timelines = {steps[i]->timeline},
         .states = {{}}});
  }
  return cost::FitStepCosts(sampled, {.read_bytes_per_second = 1, .dot_operations_per_second = 1},
                            {.validates = false, .is_of_plan = true});
}

std::vector<const RecordedStep*> StepWatch::OthersThan(Kind kind,
                                                       const RecordedStep& chosen) const {
  std::vector<const RecordedStep*> others;
  for (const Sample* sample : {&samples_.at(kind), &largest_.at(kind)}) {
    for (const RecordedStep& seen : sample->steps) {
      const bool is_new =
          seen.start != chosen.start &&
          std::none_of(others.begin(), others.end(),
                       [&](const RecordedStep* other) { return other->start == seen.start; });
      if (is_new && seen.schedule == chosen.schedule) others.push_back(&seen);
    }
  }
  // The first one found caches and memory cold.
  if (others.size() > kEnoughSteps) {
    std::erase_if(others, [&](const RecordedStep* other) {
      return other->start == samples_.at(kind).steps.front().start;
    });
  }
  return others;
}

std::optional<cost::StepCosts> StepWatch::KeptCosts(const cost::MachineProfile& profile,
                                                    const schedule::Schedule& schedule) const {
  const cost::StepCosts* kept = profile.CostsOf(schedule.num_ranks, num_threads_, weights_);
  if (kept == nullptr) return std::nullopt;
  cost::StepCosts costs = *kept;
  if (int8_kv_) costs.SwapCaches();
  if (cost::KindWithoutCost(schedule, costs)) return std::nullopt;
  return costs;
}

// The same tasks with the same sizes, simulated with costs that this step had no part in.
void StepWatch::Predict(Kind kind, const RecordedStep& chosen, drawing::TracedStep& traced) const {
  const cost::RecordedSizes sizes = SizesOf(chosen);
  const cost::Sizes values = [&](const schedule::Size& size) { return sizes.at(size); };
  const schedule::Schedule& schedule = *chosen.schedule;
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const auto predict = [&](const cost::StepCosts& costs, std::string words,
                           const cost::DiskCost& disk = {}) {
    traced.predicted = simulate::Simulate(
        schedule, graph, cost::PriceSchedule(schedule, graph, costs, values, {}, disk));
    traced.predicted_by = std::move(words);
  };
  const auto predict_by_kept = [&](const cost::MachineProfile& profile) {
    const std::optional<cost::StepCosts> costs = KeptCosts(profile, schedule);
    if (!costs) return false;
    predict(*costs,
            fmt::format("costs of {} (convene measure)", hardware::NameOf(profile.machine.cpu())),
            cost::DiskOf(profile.machine));
    return true;
  };
  if (preferred_ && predict_by_kept(*preferred_)) return;
  const std::vector<const RecordedStep*> others = OthersThan(kind, chosen);
  if (others.size() >= kEnoughSteps) {
    return predict(FitTo(others), fmt::format("costs of tasks fitted on {} other steps of this run",
                                              others.size()));
  }
  const Result<cost::MachineProfile> profile = LoadMachineProfile(hardware::ProfilePath());
  if (!profile || predict_by_kept(*profile)) return;
  if (profile->machine.read_gbps <= 0) return;  // only steps were measured
  const cost::Rates rates = cost::RatesFromProfile(profile->machine, schedule.num_ranks);
  traced.predicted = simulate::Simulate(schedule, rates, values);
  traced.predicted_by = fmt::format("peaks of {} (convene measure); exchanges cost nothing",
                                    hardware::NameOf(profile->machine.cpu()));
}

}  // namespace convene::evaluate
