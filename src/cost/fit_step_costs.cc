#include "cost/fit_step_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "base/median.h"
#include "cost/link_seconds.h"
#include "cost/non_negative_fit.h"
#include "cost/relative_line.h"
#include "schedule/activity_graph.h"

namespace convene::cost {
namespace {

using schedule::TaskId;
using schedule::TaskKind;

// Ranks that differ by less than this are alike: so much a machine wanders.
constexpr double kAlike = 0.1;
// Beyond this it was noise: no core moves less than 250 MB/s.
constexpr double kMostCoreSecondsPerByte = 4e-9;

// The round whose value is the median, or of an even number both in the middle: the upper one alone
// would be too slow, by half of what rounds scatter where there are two.
std::vector<size_t> MedianRounds(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t round) { return values[round]; });
  const size_t middle = order.size() / 2;
  if (order.size() % 2 == 1) return {order[middle]};
  return {order[middle - 1], order[middle]};
}

struct LinePoint {
  TaskKind kind = TaskKind::kCounts;
  double ideal = 0;  // seconds, or bytes; of 0 there is nothing that the line could be over
  double seconds = 0;
  int fold = 0;
};

// A line through all points, each part of the folds predicted by the others: by kind.
std::array<std::vector<PredictedSample>, schedule::kNumTaskKinds> PredictByLine(
    std::span<const LinePoint> points) {
  std::array<std::vector<PredictedSample>, schedule::kNumTaskKinds> predicted;
  for (int part = 0; part < kHeldOutParts; ++part) {
    std::vector<double> ideal;
    std::vector<double> seconds;
    for (const LinePoint& point : points) {
      if (point.fold % kHeldOutParts == part || !(point.ideal > 0)) continue;
      ideal.push_back(point.ideal);
      seconds.push_back(point.seconds);
    }
    if (ideal.empty()) continue;
    const RelativeLine line = FitRelativeLine(ideal, seconds);
    for (const LinePoint& point : points) {
      if (point.fold % kHeldOutParts != part || !(point.ideal > 0)) continue;
      predicted[static_cast<size_t>(point.kind)].push_back({line.at(point.ideal), point.seconds});
    }
  }
  return predicted;
}

void AddLine(std::span<const PredictedSample> by_line, HeldOut& held_out) {
  if (by_line.empty()) return;
  const HeldOut of_line = HeldOutOf(by_line);
  held_out.line_r2 = of_line.r2;
  held_out.line_median_error = of_line.median_error;
}

struct ExchangeSample {
  TaskKind kind = TaskKind::kCounts;
  double bytes = 0;  // in even parts, which take as long
  double seconds = 0;
  int fold = 0;
};

// Over bytes, and rising: more of them do not take less. Kinds of exchanges have sizes of their
// own, and a wait that one kind has more often than others would be a hill of the curve, on which
// everything shorter and longer would be put (`once` is where it begins).
Curve FitExchanges(std::span<const ExchangeSample> samples) {
  Curve seconds;
  std::vector<double> bytes;
  for (const ExchangeSample& sample : samples) bytes.push_back(sample.bytes);
  seconds.at = PointsOfCurve(std::move(bytes));
  std::vector<Row> rows;
  for (const ExchangeSample& sample : samples) {
    // Of steps from one point to the next, which are not below zero.
    std::vector<double> weights = WeightsAt(seconds.at, sample.bytes);
    std::partial_sum(weights.rbegin(), weights.rend(), weights.rbegin());
    rows.push_back({std::move(weights), sample.seconds});
  }
  seconds.value = FitNonNegative(rows);
  std::partial_sum(seconds.value.begin(), seconds.value.end(), seconds.value.begin());
  return seconds;
}

// Each part of the folds predicted by the others: of all exchanges, and of each kind.
void ValidateExchanges(std::span<const ExchangeSample> samples, StepCosts& costs) {
  std::vector<PredictedSample> all;
  std::array<std::vector<PredictedSample>, schedule::kNumTaskKinds> by_kind;
  for (int part = 0; part < kHeldOutParts; ++part) {
    std::vector<ExchangeSample> others;
    for (const ExchangeSample& sample : samples) {
      if (sample.fold % kHeldOutParts != part) others.push_back(sample);
    }
    const ExchangeCost cost{.seconds = FitExchanges(others)};
    for (const ExchangeSample& sample : samples) {
      if (sample.fold % kHeldOutParts != part || sample.bytes <= 0) continue;
      all.push_back({cost.SecondsOf(sample.bytes), sample.seconds});
      by_kind[static_cast<size_t>(sample.kind)].push_back(all.back());
    }
  }
  costs.exchange_held_out = HeldOutOf(all);
  std::vector<LinePoint> points;
  for (const ExchangeSample& sample : samples) {
    points.push_back({sample.kind, sample.bytes, sample.seconds, sample.fold});
  }
  const auto by_line = PredictByLine(points);
  std::vector<PredictedSample> all_by_line;
  for (size_t kind = 0; kind < by_kind.size(); ++kind) {
    all_by_line.insert(all_by_line.end(), by_line[kind].begin(), by_line[kind].end());
    if (by_kind[kind].empty()) continue;
    costs.held_out[kind] = HeldOutOf(by_kind[kind]);
    AddLine(by_line[kind], *costs.held_out[kind]);
  }
  AddLine(all_by_line, *costs.exchange_held_out);
}

// What was seen of the steps, by what it is.
struct Samples {
  std::array<std::vector<TaskSample>, schedule::kNumTaskKinds> tasks;
  std::vector<TaskSample> int8_attention;
  std::array<std::vector<TaskSample>, schedule::kNumTaskKinds> cached_tasks;
  std::vector<ExchangeSample> exchanges;
};

// From when the last rank has come to it until all are through with it; none: a task did not run.
std::optional<schedule::TaskTime> CollectiveTime(const schedule::Timeline& timeline,
                                                 std::span<const TaskId> tasks) {
  schedule::TaskTime collective = timeline.tasks[tasks.front()];
  for (const TaskId id : tasks) {
    const schedule::TaskTime& time = timeline.tasks[id];
    if (time.end < time.start) return std::nullopt;
    collective.start = std::max(collective.start, time.start);
    collective.end = std::max(collective.end, time.end);
  }
  return collective;
}

// All rounds of those that nothing ran beside: how long one takes depends on when other ranks get
// to run, and a step has the long ones among many short ones.
void AddExchangesAlone(const SampledStep& step, const schedule::ActivityGraph& graph,
                       const ExchangeCost& link, std::vector<ExchangeSample>& samples) {
  const schedule::Schedule& schedule = *step.schedule;
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const TaskId> tasks = graph.tasks_of(activity);
    const TaskKind kind = schedule.tasks[tasks.front()].kind;
    if (!IsCollective(kind)) continue;
    const double bytes = link.EvenBytes(BytesOf(schedule, tasks, step.sizes));
    for (const schedule::Timeline& timeline : step.timelines) {
      const double seconds = CollectiveSeconds(timeline, tasks);
      if (seconds < kLeastTaskSeconds || HasComputationBeside(schedule, timeline, tasks)) continue;
      samples.push_back({kind, bytes, seconds, step.fold});
    }
  }
}

// All rounds, whatever ran beside them, with what they had of the link.
void AddExchangesOfPlan(const SampledStep& step, const schedule::ActivityGraph& graph,
                        const ExchangeCost& link, std::vector<ExchangeSample>& samples) {
  const schedule::Schedule& schedule = *step.schedule;
  for (const schedule::Timeline& timeline : step.timelines) {
    const std::vector<double> seconds = LinkSeconds(schedule, graph, timeline);
    for (int activity = 0; activity < graph.num_activities(); ++activity) {
      if (seconds[static_cast<size_t>(activity)] < kLeastTaskSeconds) continue;
      const std::span<const TaskId> tasks = graph.tasks_of(activity);
      samples.push_back({schedule.tasks[tasks.front()].kind,
                         link.EvenBytes(BytesOf(schedule, tasks, step.sizes)),
                         seconds[static_cast<size_t>(activity)], step.fold});
    }
  }
}

// A dense block and a shared expert are the same products. Few of the models that are measured have
// dense layers, all of one shape, from which nobody can tell what goes with rows and what with
// weights.
void AddSharedToDense(Samples& samples) {
  std::vector<TaskSample>& dense = samples.tasks[static_cast<size_t>(TaskKind::kDense)];
  const std::vector<TaskSample>& shared = samples.tasks[static_cast<size_t>(TaskKind::kShared)];
  if (!dense.empty()) dense.insert(dense.end(), shared.begin(), shared.end());
}

void AddStep(const SampledStep& step, const ExchangeCost& link, Samples& samples) {
  const schedule::Schedule& schedule = *step.schedule;
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const auto add_exchanges = link.is_of_plan ? AddExchangesOfPlan : AddExchangesAlone;
  if (!step.is_special()) add_exchanges(step, graph, link, samples.exchanges);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const TaskId> tasks = graph.tasks_of(activity);
    const schedule::Task& task = schedule.tasks[tasks.front()];
    if (IsCollective(task.kind)) continue;
    if (step.int8_kv && task.kind != TaskKind::kAttention) continue;
    const auto kind = static_cast<size_t>(task.kind);
    std::vector<TaskSample>& of_kind = step.int8_kv              ? samples.int8_attention
                                       : step.has_cached_weights ? samples.cached_tasks[kind]
                                                                 : samples.tasks[kind];
    std::vector<double> seconds;
    for (const schedule::Timeline& timeline : step.timelines) {
      seconds.push_back(CollectiveSeconds(timeline, tasks));
    }
    std::vector<double> normalised = seconds;
    for (size_t i = 0; i < seconds.size(); ++i) normalised[i] /= step.states[i].memory;
    for (const size_t round : MedianRounds(normalised)) {
      if (seconds[round] < kLeastTaskSeconds) continue;
      of_kind.push_back({.parts = PartsOf(task, step.sizes),
                         .state = step.states[round],
                         .seconds = seconds[round],
                         .fold = step.fold,
                         .rank = task.lane.rank});
    }
  }
}

// How much longer a rank's tasks take than they cost on all ranks: those that mostly wait for
// memory, and those that mostly wait for cores.
class RankFit {
 public:
  void Add(const TaskCost& cost, const TaskSample& sample) {
    const double all = cost.Seconds(sample.parts, sample.state);
    if (!(all > 0)) return;
    const double of_cores = cost.SecondsOfCores(sample.parts, sample.state);
    (of_cores < 0.5 * all ? memory_ : cores_).push_back({sample.seconds / all, all});
  }

  // Of each the median, where a task counts as long as it should take: one that was disturbed says
  // nothing. One number for both where next to no task says what one of them is.
  MachineState State() const {
    if (memory_.empty() && cores_.empty()) return {};
    std::vector<WeightedRatio> both = memory_;
    both.insert(both.end(), cores_.begin(), cores_.end());
    if (kLeastPart * std::min(memory_.size(), cores_.size()) < both.size()) {
      const double ratio = WeightedMedian(std::move(both));
      return {.memory = ratio, .compute = ratio};
    }
    return {.memory = WeightedMedian(memory_), .compute = WeightedMedian(cores_)};
  }

 private:
  struct WeightedRatio {
    double ratio = 0;
    double weight = 0;
  };
  static constexpr size_t kLeastPart = 10;  // of all tasks

  static double WeightedMedian(std::vector<WeightedRatio> ratios) {
    std::ranges::sort(ratios, {}, &WeightedRatio::ratio);
    double all = 0;
    for (const WeightedRatio& one : ratios) all += one.weight;
    double below = 0;
    for (const WeightedRatio& one : ratios) {
      below += one.weight;
      if (below >= all / 2) return one.ratio;
    }
    return 1;
  }

  std::vector<WeightedRatio> memory_;
  std::vector<WeightedRatio> cores_;
};

// None where ranks are alike. Costs are of all ranks, fitted by the mean of what tasks took, and
// the median is less than that where times scatter. So it is by their mean that ranks are compared:
// what all of them have in common is no rank's.
std::vector<MachineState> FitRankStates(const Samples& samples, const StepCosts& costs) {
  std::vector<RankFit> ranks;
  for (size_t kind = 0; kind < samples.tasks.size(); ++kind) {
    for (const TaskSample& sample : samples.tasks[kind]) {
      const auto rank = static_cast<size_t>(sample.rank);
      if (rank >= ranks.size()) ranks.resize(rank + 1);
      ranks[rank].Add(*costs.tasks[kind], sample);
    }
  }
  if (ranks.size() < 2) return {};
  std::vector<MachineState> states;
  MachineState mean = {.memory = 0, .compute = 0};
  for (const RankFit& rank : ranks) {
    states.push_back(rank.State());
    mean.memory += states.back().memory / static_cast<double>(ranks.size());
    mean.compute += states.back().compute / static_cast<double>(ranks.size());
  }
  for (MachineState& state : states) {
    state.memory /= mean.memory;
    state.compute /= mean.compute;
  }
  const auto differs = [](const MachineState& state) {
    return std::abs(state.memory - 1) > kAlike || std::abs(state.compute - 1) > kAlike;
  };
  if (!std::any_of(states.begin(), states.end(), differs)) states.clear();
  return states;
}

// Without what ranks differ by, which prices know: errors are of the rest.
std::vector<TaskSample> AsIfAlike(std::vector<TaskSample> samples, const TaskCost& cost,
                                  const StepCosts& costs) {
  if (costs.rank_states.empty()) return samples;
  for (TaskSample& sample : samples) {
    const double of_rank = costs.TaskSeconds(cost, sample.rank, sample.parts, sample.state);
    const double of_all = cost.Seconds(sample.parts, sample.state);
    if (of_rank > 0 && of_all > 0) sample.seconds *= of_all / of_rank;
  }
  return samples;
}

// Scores over a cache in int8, where there are those over the usual one to begin with.
void AddInt8Attention(const std::vector<TaskSample>& samples, bool validates, StepCosts& costs) {
  const auto& usual = costs.tasks[static_cast<size_t>(TaskKind::kAttention)];
  if (samples.empty() || !usual) return;
  costs.int8_attention = TaskCost::FitCurve(*usual, TaskCurve::kScores, samples);
  if (!validates) return;
  costs.int8_attention_held_out = TaskCost::ValidateCurve(
      *usual, TaskCurve::kScores, AsIfAlike(samples, *costs.int8_attention, costs));
}

// Products whose weights are read from a cache, where there are those from memory to begin with.
void AddCachedTasks(const std::array<std::vector<TaskSample>, schedule::kNumTaskKinds>& samples,
                    StepCosts& costs) {
  for (size_t kind = 0; kind < samples.size(); ++kind) {
    const bool has_weights = std::ranges::any_of(
        samples[kind], [](const TaskSample& sample) { return sample.parts.weight_bytes > 0; });
    if (!has_weights || !costs.tasks[kind]) continue;
    TaskCost like = *costs.tasks[kind];
    like.sensitivity = 0;  // nothing waits for memory
    costs.cached_tasks[kind] = TaskCost::FitCurve(like, TaskCurve::kWeights, samples[kind]);
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
        bytes += 2 * BytesOf(schedule, tasks, step.sizes).all;
      } else if (const auto& cost = costs.tasks[static_cast<size_t>(task.kind)]) {
        longer += seconds - costs.TaskSeconds(*cost, task.lane.rank, PartsOf(task, step.sizes),
                                              step.states[round]);
      }
    }
    if (bytes > 0) per_byte.push_back(longer / bytes);
  }
}

double SensitivityOf(TaskKind kind, std::span<const TaskSample> samples, double balance,
                     const FitOptions& options) {
  if (options.validates) return TaskCost::BestSensitivity(samples, balance);
  if (options.sensitivities_of == nullptr) return 1;
  const auto& cost = options.sensitivities_of->tasks[static_cast<size_t>(kind)];
  return cost ? cost->sensitivity : 1;
}

}  // namespace

bool HasComputationBeside(const schedule::Schedule& schedule, const schedule::Timeline& timeline,
                          std::span<const TaskId> tasks) {
  const std::optional<schedule::TaskTime> collective = CollectiveTime(timeline, tasks);
  if (!collective) return false;
  std::vector<double> end_of(static_cast<size_t>(schedule.num_ranks), collective->start);
  for (const TaskId id : tasks) {
    end_of[static_cast<size_t>(schedule.tasks[id].lane.rank)] = timeline.tasks[id].end;
  }
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const schedule::TaskTime& time = timeline.tasks[id];
    const schedule::Lane& lane = schedule.tasks[id].lane;
    if (lane.kind != schedule::LaneKind::kCompute) continue;
    const double beside = std::min(end_of[static_cast<size_t>(lane.rank)], time.end) -
                          std::max(collective->start, time.start);
    if (beside > kLeastTaskSeconds) return true;
  }
  return false;
}

double CollectiveSeconds(const schedule::Timeline& timeline, std::span<const TaskId> tasks) {
  const std::optional<schedule::TaskTime> time = CollectiveTime(timeline, tasks);
  return time ? time->end - time->start : -1;
}

StepCosts FitStepCosts(std::span<const SampledStep> steps, const ReferenceSpeed& reference,
                       const FitOptions& options) {
  const bool validates = options.validates;
  ExchangeCost link;
  link.unevenness = options.unevenness;
  link.is_of_plan = options.is_of_plan;
  Samples samples;
  for (const SampledStep& step : steps) {
    if (!step.overlaps) AddStep(step, link, samples);
  }
  AddSharedToDense(samples);
  StepCosts costs;
  costs.reference = reference;
  const double balance = reference.balance();
  std::array<double, schedule::kNumTaskKinds> sensitivity = {};
  for (size_t kind = 0; kind < samples.tasks.size(); ++kind) {
    const std::vector<TaskSample>& of_kind = samples.tasks[kind];
    if (of_kind.empty()) continue;
    sensitivity[kind] = SensitivityOf(static_cast<TaskKind>(kind), of_kind, balance, options);
    costs.tasks[kind] = TaskCost::Fit(of_kind, balance, sensitivity[kind]);
  }
  costs.rank_states = FitRankStates(samples, costs);
  for (size_t kind = 0; kind < samples.tasks.size() && validates; ++kind) {
    if (samples.tasks[kind].empty()) continue;
    const std::vector<TaskSample> alike = AsIfAlike(samples.tasks[kind], *costs.tasks[kind], costs);
    costs.held_out[kind] = TaskCost::Validate(alike, balance, sensitivity[kind]);
    std::vector<LinePoint> points;
    for (const TaskSample& sample : alike) {
      const TaskParts& parts = sample.parts;
      const double ideal =
          std::max((parts.product_flops + parts.score_flops) / reference.dot_operations_per_second,
                   (parts.weight_bytes + parts.cache_bytes + parts.row_bytes) /
                       reference.read_bytes_per_second);
      points.push_back({static_cast<TaskKind>(kind), ideal, sample.seconds, sample.fold});
    }
    AddLine(PredictByLine(points)[kind], *costs.held_out[kind]);
  }
  AddInt8Attention(samples.int8_attention, validates, costs);
  AddCachedTasks(samples.cached_tasks, costs);
  link.seconds = FitExchanges(samples.exchanges);
  costs.exchange = link;
  if (validates && !samples.exchanges.empty()) ValidateExchanges(samples.exchanges, costs);
  costs.exchange.core_seconds_per_byte = CoreSecondsPerByte(steps, costs, /*left_out=*/nullptr);
  return costs;
}

double CoreSecondsPerByte(std::span<const SampledStep> steps, StepCosts costs,
                          const SampledStep* left_out) {
  costs.exchange.core_seconds_per_byte = 0;
  std::vector<double> per_byte;
  for (const SampledStep& step : steps) {
    if (step.overlaps && &step != left_out) AddOverlap(step, costs, per_byte);
  }
  return std::clamp(Median(per_byte), 0.0, kMostCoreSecondsPerByte);
}

}  // namespace convene::cost
