#include "planner/step_pricer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "base/units.h"

namespace convene::planner {
namespace {

constexpr double kGiga = 1e9;

// As convene measure has it (evaluate/measure_operators.h): over words, and over the seconds in
// which memory gives so many float32.
struct GreedySampling {
  cost::OperatorModel model;
  double read_bytes_per_second = 0;

  double Seconds(int words) const {
    if (words < 1) return 0;
    const double features[] = {static_cast<double>(words)};
    const double ideal = 4.0 * words / read_bytes_per_second;
    return model.Predict(features, ideal).seconds;
  }
};

std::optional<GreedySampling> GreedySamplingOf(const cost::MachineProfile& profile) {
  const auto found = profile.operators.find(kSampleGreedily);
  // Whoever wrote the profile may call something else so.
  if (found == profile.operators.end() || found->second.ranges.size() != 1) return std::nullopt;
  const double read_gbps = profile.machine.read_gbps;
  if (!(read_gbps >= 1e-3 && read_gbps <= 1e9)) return std::nullopt;
  return GreedySampling{.model = found->second, .read_bytes_per_second = kGiga * read_gbps};
}

// With costs of its own, for conditions that the profile's are not of.
class OwningPricer : public StepPricer {
 public:
  OwningPricer(cost::StepCosts costs, const cost::MachineState& state, const cost::DiskCost& disk,
               const std::string& file, std::optional<GreedySampling> sampling)
      : costs_(std::move(costs)),
        pricer_(costs_, state, disk, file),
        sampling_(std::move(sampling)) {}

  Result<SchedulePrices> Price(const model::ModelSpec& spec, const schedule::Schedule& schedule,
                               const schedule::ActivityGraph& graph,
                               const cost::Sizes& sizes) const override {
    return pricer_.Price(spec, schedule, graph, sizes);
  }
  cost::StepErrors Errors() const override { return pricer_.Errors(); }
  double SamplingSeconds(const model::ModelSpec& spec) const override {
    return sampling_ ? sampling_->Seconds(spec.vocab_size) : 0;
  }

 private:
  cost::StepCosts costs_;
  MeasuredPricer pricer_;
  std::optional<GreedySampling> sampling_;
};

// "2 ranks of 1 thread".
std::string RanksOfThreads(int num_ranks, std::optional<int> num_threads) {
  const std::string ranks = FormatCount(static_cast<uint64_t>(num_ranks), "rank");
  if (!num_threads) return ranks;
  return fmt::format("{} of {}", ranks, FormatCount(static_cast<uint64_t>(*num_threads), "thread"));
}

// What bytes take grows; what an exchange of next to nothing takes stays.
void SlowLink(double factor, cost::ExchangeCost& exchange) {
  const double once = exchange.once();
  for (double& seconds : exchange.seconds.value) {
    seconds = once + std::max(0.0, seconds - once) * factor;
  }
}

}  // namespace

bool ReadsDisk(const schedule::Schedule& schedule) {
  return std::ranges::any_of(
      schedule.tasks, [](const schedule::Task& task) { return !task.work.disk_bytes.empty(); });
}

Error NoDiskRate() {
  return Error{
      "experts would be read from a disk whose rate the profile does not know: measure it with "
      "convene measure --disk DIR, or give it with --disk-rate, or as \"disk_gbps\" of the "
      "profile's "
      "\"machine\""};
}

Result<SchedulePrices> MeasuredPricer::Price(const model::ModelSpec& /*spec*/,
                                             const schedule::Schedule& schedule,
                                             const schedule::ActivityGraph& graph,
                                             const cost::Sizes& sizes) const {
  if (const auto kind = KindWithoutCost(schedule, costs_)) {
    return Error{fmt::format(
        "the profile has no cost of {} on {} with weights in {}: {}", schedule::Name(*kind),
        RanksOfThreads(costs_.num_ranks, costs_.num_threads), costs_.weights,
        HowToMeasure(costs_.num_ranks, costs_.num_threads, costs_.weights, file_))};
  }
  if (ReadsDisk(schedule) && disk_.bytes_per_second <= 0) return NoDiskRate();
  return SchedulePrices{
      .prices = cost::PriceSchedule(schedule, graph, costs_, sizes, state_, disk_),
      .once_seconds = costs_.step_once,
      .extrapolated_share = cost::ExtrapolatedShare(schedule, costs_, sizes)};
}

std::string MeasuredSource::WhyUnknown(int num_ranks, std::optional<int> num_threads,
                                       std::string_view weights) const {
  return fmt::format("nothing is known of {} with weights in {}; {}",
                     RanksOfThreads(num_ranks, num_threads), weights,
                     HowToMeasure(num_ranks, num_threads, weights, file_));
}

std::vector<int> MeasuredSource::ThreadsOf(int num_ranks, std::string_view weights) const {
  std::vector<int> threads;
  for (const cost::StepCosts& costs : profile_.steps) {
    if (costs.num_ranks == num_ranks && costs.weights == weights) {
      threads.push_back(costs.num_threads);
    }
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::vector<std::string> MeasuredSource::Formats() const {
  std::vector<std::string> formats;
  for (const cost::StepCosts& costs : profile_.steps) formats.push_back(costs.weights);
  std::sort(formats.begin(), formats.end());
  formats.erase(std::unique(formats.begin(), formats.end()), formats.end());
  return formats;
}

Result<std::unique_ptr<StepPricer>> MeasuredSource::PricerOf(const RankSetup& setup,
                                                             const Conditions& conditions,
                                                             int /*comm_budget*/) const {
  const cost::StepCosts* costs =
      profile_.CostsOf(setup.num_ranks, setup.num_threads, setup.weights);
  if (costs == nullptr) {
    return Error{
        fmt::format("the profile has no costs of steps on {} with weights in {}: {}",
                    RanksOfThreads(setup.num_ranks, setup.num_threads), setup.weights,
                    HowToMeasure(setup.num_ranks, setup.num_threads, setup.weights, file_))};
  }
  cost::StepCosts changed = *costs;
  if (conditions.weight_bytes > 0 && conditions.weight_bytes <= changed.cached_weight_bytes) {
    changed.SwapCachedTasks();
  }
  // After the weights: attention is then that over its cache, with weights from memory.
  if (setup.int8_kv) {
    if (!changed.int8_attention) {
      return Error{
          fmt::format("the profile has no costs of attention with an int8 KV cache on {} with "
                      "weights in {}: {}",
                      RanksOfThreads(setup.num_ranks, setup.num_threads), setup.weights,
                      HowToMeasure(setup.num_ranks, setup.num_threads, setup.weights, file_))};
    }
    changed.SwapCaches();
  }
  SlowLink(conditions.link, changed.exchange);
  if (conditions.alike_ranks) changed.rank_states.clear();
  cost::DiskCost disk = cost::DiskOf(profile_.machine);
  disk.bytes_per_second /= conditions.disk;
  return std::unique_ptr<StepPricer>(std::make_unique<OwningPricer>(
      std::move(changed), conditions.machine, disk, file_, GreedySamplingOf(profile_)));
}

MachineFigures MeasuredSource::FiguresOf(const RankSetup& setup) const {
  const cost::StepCosts* costs =
      profile_.CostsOf(setup.num_ranks, setup.num_threads, setup.weights);
  if (costs == nullptr) return {};
  const double per_byte = costs->exchange.lasting_seconds_per_byte();
  return {.memory_bytes_per_second = costs->reference.read_bytes_per_second,
          .operations_per_second = costs->reference.dot_operations_per_second,
          .link_bytes_per_second = per_byte > 0 ? 1 / per_byte : 0,
          .disk_bytes_per_second = kGiga * profile_.machine.disk_gbps};
}

std::vector<cost::MachineState> MeasuredSource::RankStatesOf(const RankSetup& setup) const {
  const cost::StepCosts* costs =
      profile_.CostsOf(setup.num_ranks, setup.num_threads, setup.weights);
  return costs == nullptr ? std::vector<cost::MachineState>() : costs->rank_states;
}

std::string HowToMeasure(int num_ranks, std::optional<int> num_threads, std::string_view weights,
                         std::string_view file) {
  return fmt::format("measure them with: {}convene measure --steps {}{}{}",
                     num_ranks > 1 ? fmt::format("mpirun -n {} --bind-to none ", num_ranks) : "",
                     weights, num_threads ? fmt::format(" --threads {}", *num_threads) : "",
                     file.empty() ? "" : fmt::format(" --out {}", Printable(file)));
}

}  // namespace convene::planner
