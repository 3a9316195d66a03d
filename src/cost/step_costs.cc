#include "cost/step_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cost/non_negative_fit.h"
#include "schedule/activity_graph.h"

namespace convene::cost {
namespace {

using schedule::TaskId;
using schedule::TaskKind;

// Shorter tasks have nothing to do: reading the clock takes longer.
constexpr double kLeastSeconds = 2e-7;
// Beyond this it was noise: no core moves less than 250 MB/s.
constexpr double kMostCoreSecondsPerByte = 4e-9;

// The round whose value is the median.
size_t MedianRound(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return order[order.size() / 2];
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Sent by all ranks.
double LinkBytesOf(const schedule::Schedule& schedule, std::span<const TaskId> tasks,
                   const Sizes& sizes) {
  return RegressorValue(schedule, tasks, Regressor::kLinkTotal, sizes);
}

struct ExchangeSample {
  double bytes = 0;
  double seconds = 0;
  int fold = 0;
};

ExchangeCost FitExchanges(std::span<const ExchangeSample> samples) {
  ExchangeCost cost;
  std::vector<double> bytes;
  for (const ExchangeSample& sample : samples) bytes.push_back(sample.bytes);
  cost.seconds.at = CurvePoints(std::move(bytes));
  std::vector<Row> rows;
  for (const ExchangeSample& sample : samples) {
    rows.push_back({WeightsAt(cost.seconds.at, sample.bytes), sample.seconds});
  }
  cost.seconds.value = FitNonNegative(rows);
  return cost;
}

// Each part of the folds predicted by the others.
HeldOut ValidateExchanges(std::span<const ExchangeSample> samples) {
  constexpr int kParts = 7;
  std::vector<PredictedSample> predicted;
  for (int part = 0; part < kParts; ++part) {
    std::vector<ExchangeSample> others;
    for (const ExchangeSample& sample : samples) {
      if (sample.fold % kParts != part) others.push_back(sample);
    }
    const ExchangeCost cost = FitExchanges(others);
    for (const ExchangeSample& sample : samples) {
      if (sample.fold % kParts != part || sample.bytes <= 0) continue;
      predicted.push_back({cost.SecondsOf(sample.bytes), sample.seconds});
    }
  }
  return HeldOutOf(predicted);
}

// What was seen of the steps, by what it is.
struct Samples {
  std::array<std::vector<TaskSample>, schedule::kNumTaskKinds> tasks;
  std::vector<ExchangeSample> exchanges;
};

void AddStep(const SampledStep& step, Samples& samples) {
  const schedule::Schedule& schedule = *step.schedule;
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const TaskId> tasks = graph.tasks_of(activity);
    const schedule::Task& task = schedule.tasks[tasks.front()];
    std::vector<double> seconds;
    for (const schedule::Timeline& timeline : step.timelines) {
      seconds.push_back(CollectiveSeconds(timeline, tasks));
    }
    std::vector<double> normalised = seconds;
    for (size_t i = 0; i < seconds.size(); ++i) normalised[i] /= step.states[i].memory;
    const size_t round = MedianRound(IsCollective(task.kind) ? seconds : normalised);
    if (seconds[round] < kLeastSeconds) continue;
    if (IsCollective(task.kind)) {
      samples.exchanges.push_back(
          {LinkBytesOf(schedule, tasks, step.sizes), seconds[round], step.fold});
      continue;
    }
    samples.tasks[static_cast<size_t>(task.kind)].push_back({.parts = PartsOf(task, step.sizes),
                                                             .state = step.states[round],
                                                             .seconds = seconds[round],
                                                             .fold = step.fold});
  }
}

// Of each round of a step with overlap: what computing took longer than alone, for each byte that
// the ranks sent or received meanwhile.
void AddOverlap(const SampledStep& step, const StepCosts& costs, std::vector<double>& per_byte) {
  const schedule::Schedule& schedule = *step.schedule;
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  for (size_t round = 0; round < step.timelines.size(); ++round) {
    double longer = 0;
    double bytes = 0;
    for (int activity = 0; activity < graph.num_activities(); ++activity) {
      const std::span<const TaskId> tasks = graph.tasks_of(activity);
      const schedule::Task& task = schedule.tasks[tasks.front()];
      const double seconds = CollectiveSeconds(step.timelines[round], tasks);
      if (seconds < 0) continue;
      if (IsCollective(task.kind)) {
        bytes += 2 * LinkBytesOf(schedule, tasks, step.sizes);
      } else if (const auto& cost = costs.tasks[static_cast<size_t>(task.kind)]) {
        longer += seconds - cost->Seconds(PartsOf(task, step.sizes), step.states[round]);
      }
    }
    if (bytes > 0) per_byte.push_back(longer / bytes);
  }
}

}  // namespace

double CollectiveSeconds(const schedule::Timeline& timeline, std::span<const TaskId> tasks) {
  double start = timeline.tasks[tasks.front()].start;
  double end = timeline.tasks[tasks.front()].end;
  for (const TaskId id : tasks) {
    const schedule::TaskTime& time = timeline.tasks[id];
    if (time.end < time.start) return -1;
    start = std::max(start, time.start);
    end = std::max(end, time.end);
  }
  return end - start;
}

StepCosts FitStepCosts(std::span<const SampledStep> steps, const ReferenceSpeed& reference) {
  Samples samples;
  for (const SampledStep& step : steps) {
    if (!step.overlaps) AddStep(step, samples);
  }
  StepCosts costs;
  costs.reference = reference;
  const double balance = reference.balance();
  for (size_t kind = 0; kind < samples.tasks.size(); ++kind) {
    const std::vector<TaskSample>& of_kind = samples.tasks[kind];
    if (of_kind.empty()) continue;
    const double sensitivity = TaskCost::BestSensitivity(of_kind, balance);
    costs.tasks[kind] = TaskCost::Fit(of_kind, balance, sensitivity);
    costs.held_out[kind] = TaskCost::Validate(of_kind, balance, sensitivity);
  }
  costs.exchange = FitExchanges(samples.exchanges);
  if (!samples.exchanges.empty()) {
    costs.exchange_held_out = ValidateExchanges(samples.exchanges);
  }
  std::vector<double> per_byte;
  for (const SampledStep& step : steps) {
    if (step.overlaps) AddOverlap(step, costs, per_byte);
  }
  costs.exchange.core_seconds_per_byte = std::clamp(Median(per_byte), 0.0, kMostCoreSecondsPerByte);
  return costs;
}

double ExchangeCost::SecondsOf(double bytes) const {
  if (seconds.at.empty()) return 0;
  const double beyond = bytes - seconds.at.back();
  if (beyond > 0) return seconds.value.back() + beyond * lasting_seconds_per_byte();
  const std::vector<double> weights = WeightsAt(seconds.at, bytes);
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * seconds.value[i];
  return sum;
}

double ExchangeCost::lasting_seconds_per_byte() const {
  const size_t count = seconds.at.size();
  if (count < 2) return 0;
  return std::max(0.0, (seconds.value[count - 1] - seconds.value[count - 2]) /
                           (seconds.at[count - 1] - seconds.at[count - 2]));
}

namespace {

// Whether exchanges of the schedule come one right after the other, while computation goes on.
bool HasOverlap(const schedule::Schedule& schedule) {
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), [](const schedule::Task& task) {
    return IsCollective(task.kind) && (task.chunk > 0 || task.micro_batch > 0);
  });
}

}  // namespace

Prices PriceSchedule(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                     const StepCosts& costs, const Sizes& sizes, const MachineState& state) {
  Prices prices;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    prices.resources.push_back(
        {fmt::format("r{} cores", rank), ResourceKind::kCores, ConstantRate(1)});
  }
  const int32_t link = schedule.num_ranks;
  prices.resources.push_back({"link", ResourceKind::kLink, ConstantRate(1)});
  const bool overlaps = HasOverlap(schedule);
  prices.first_demand.push_back(0);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const TaskId> tasks = graph.tasks_of(activity);
    const schedule::Task& task = schedule.tasks[tasks.front()];
    double fixed = 0;
    const auto ask = [&](int32_t resource, double amount) {
      if (amount > 0) prices.demands.push_back({.resource = resource, .amount = amount});
    };
    if (IsCollective(task.kind)) {
      const double bytes = LinkBytesOf(schedule, tasks, sizes);
      fixed = costs.exchange.once();
      ask(link, overlaps ? bytes * costs.exchange.lasting_seconds_per_byte()
                         : costs.exchange.SecondsOf(bytes) - fixed);
      const double core_seconds =
          bytes * costs.exchange.core_seconds_per_byte * 2 / static_cast<double>(tasks.size());
      for (const TaskId id : tasks) ask(schedule.tasks[id].lane.rank, core_seconds);
    } else if (const auto& cost = costs.tasks[static_cast<size_t>(task.kind)]) {
      ask(task.lane.rank, cost->Seconds(PartsOf(task, sizes), state));
    }
    prices.fixed_seconds.push_back(fixed);
    prices.first_demand.push_back(static_cast<int32_t>(prices.demands.size()));
  }
  return prices;
}

std::optional<TaskKind> KindWithoutCost(const schedule::Schedule& schedule,
                                        const StepCosts& costs) {
  for (const schedule::Task& task : schedule.tasks) {
    const bool has_work = !task.work.flops.empty() || !task.work.memory_bytes.empty();
    if (has_work && !IsCollective(task.kind) && !costs.tasks[static_cast<size_t>(task.kind)]) {
      return task.kind;
    }
  }
  return std::nullopt;
}

double ExtrapolatedShare(const schedule::Schedule& schedule, const StepCosts& costs,
                         const Sizes& sizes) {
  double all = 0;
  double beyond = 0;
  for (const schedule::Task& task : schedule.tasks) {
    const auto& cost = costs.tasks[static_cast<size_t>(task.kind)];
    if (!cost) continue;
    const TaskParts parts = PartsOf(task, sizes);
    const double seconds = cost->Seconds(parts);
    all += seconds;
    if (cost->Extrapolates(parts)) beyond += seconds;
  }
  return all > 0 ? beyond / all : 0;
}

bool StepCosts::operator==(const StepCosts& other) const { return ToJson(*this) == ToJson(other); }

namespace {

nlohmann::ordered_json HeldOutToJson(const HeldOut& held_out) {
  return {{"points", held_out.num_points},
          {"mean_error", held_out.mean_error},
          {"median_error", held_out.median_error},
          {"p95_error", held_out.p95_error},
          {"bias", held_out.bias},
          {"r2", held_out.r2}};
}

// What is missing is 0: it is told to people and decides nothing.
HeldOut HeldOutFromJson(const nlohmann::json& json) {
  const auto number = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_number() ? found->get<double>() : 0;
  };
  return {.num_points = static_cast<int>(std::clamp(number("points"), 0.0, 1e9)),
          .mean_error = number("mean_error"),
          .median_error = number("median_error"),
          .p95_error = number("p95_error"),
          .bias = number("bias"),
          .r2 = number("r2")};
}

std::optional<size_t> KindNamed(const std::string& name) {
  for (size_t kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    if (schedule::Name(static_cast<TaskKind>(kind)) == name) return kind;
  }
  return std::nullopt;
}

bool IsCost(const nlohmann::json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_number() && std::isfinite(found->get<double>()) &&
         found->get<double>() >= 0;
}

}  // namespace

nlohmann::ordered_json ToJson(const StepCosts& costs) {
  nlohmann::ordered_json json = {
      {"ranks", costs.num_ranks},
      {"threads", costs.num_threads},
      {"weights", costs.weights},
      {"read_bytes_per_s", costs.reference.read_bytes_per_second},
      {"dot_operations_per_s", costs.reference.dot_operations_per_second},
      {"step_once_s", costs.step_once}};
  json["exchange"] = {{"seconds_over_bytes", ToJson(costs.exchange.seconds)},
                      {"core_s_per_byte", costs.exchange.core_seconds_per_byte}};
  if (costs.exchange_held_out) {
    json["exchange"]["held_out"] = HeldOutToJson(*costs.exchange_held_out);
  }
  json["tasks"] = nlohmann::ordered_json::object();
  for (size_t kind = 0; kind < costs.tasks.size(); ++kind) {
    if (!costs.tasks[kind]) continue;
    nlohmann::ordered_json task = ToJson(*costs.tasks[kind]);
    if (costs.held_out[kind]) task["held_out"] = HeldOutToJson(*costs.held_out[kind]);
    json["tasks"][std::string(schedule::Name(static_cast<TaskKind>(kind)))] = std::move(task);
  }
  return json;
}

Result<StepCosts> StepCostsFromJson(const nlohmann::json& json) {
  StepCosts costs;
  for (const char* key :
       {"ranks", "threads", "read_bytes_per_s", "dot_operations_per_s", "step_once_s"}) {
    if (!IsCost(json, key)) return Error{fmt::format("costs of steps have no number \"{}\"", key)};
  }
  if (!json.contains("weights") || !json["weights"].is_string()) {
    return Error{"costs of steps have no name of a format \"weights\""};
  }
  if (json["ranks"].get<double>() > 1e6 || json["threads"].get<double>() > 1e6) {
    return Error{"costs of steps have more than a million ranks or threads"};
  }
  costs.num_ranks = json["ranks"].get<int>();
  costs.num_threads = json["threads"].get<int>();
  costs.weights = json["weights"].get<std::string>();
  costs.reference = {.read_bytes_per_second = json["read_bytes_per_s"].get<double>(),
                     .dot_operations_per_second = json["dot_operations_per_s"].get<double>()};
  costs.step_once = json["step_once_s"].get<double>();
  if (!json.contains("exchange") || !json.contains("tasks") || !json["tasks"].is_object()) {
    return Error{"costs of steps lack \"exchange\" or \"tasks\""};
  }
  const nlohmann::json& exchange = json["exchange"];
  Result<Curve> seconds = CurveFromJson(exchange, "seconds_over_bytes");
  if (!seconds) return Error{fmt::format("exchanges: {}", seconds.error().message)};
  costs.exchange.seconds = *std::move(seconds);
  if (!IsCost(exchange, "core_s_per_byte")) {
    return Error{"costs of exchanges have no number \"core_s_per_byte\""};
  }
  costs.exchange.core_seconds_per_byte = exchange["core_s_per_byte"].get<double>();
  if (exchange.contains("held_out")) {
    costs.exchange_held_out = HeldOutFromJson(exchange["held_out"]);
  }
  for (const auto& [name, task] : json["tasks"].items()) {
    const std::optional<size_t> kind = KindNamed(name);
    if (!kind) return Error{fmt::format("\"{}\" is no kind of task", name)};
    const Result<TaskCost> cost = TaskCostFromJson(task);
    if (!cost) return Error{fmt::format("{}: {}", name, cost.error().message)};
    costs.tasks[*kind] = *cost;
    if (task.contains("held_out")) costs.held_out[*kind] = HeldOutFromJson(task["held_out"]);
  }
  return costs;
}

}  // namespace convene::cost
