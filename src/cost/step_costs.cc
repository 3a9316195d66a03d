#include "cost/step_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cost/measured_kind.h"
#include "schedule/activity_graph.h"

namespace convene::cost {
namespace {

using schedule::TaskId;
using schedule::TaskKind;

// Of curves that are straight lines whatever the size, where they begin and how far they reach.
constexpr double kNoProducts = 1e-9;
constexpr double kAnyAmount = 1e18;
// Parts of a link's rate that exchanges may have.
constexpr int kLinkStreams = 1000;

// What each rank of an exchange sends and receives.
class BytesByRank {
 public:
  explicit BytesByRank(const schedule::Schedule& schedule, const Sizes& sizes)
      : schedule_(schedule),
        sizes_(sizes),
        sent_(static_cast<size_t>(schedule.num_ranks), 0),
        received_(sent_) {}

  // Bytes whose receiver is not named arrive evenly at all other ranks of the exchange.
  void Count(std::span<const TaskId> tasks) {
    std::ranges::fill(sent_, 0);
    std::ranges::fill(received_, 0);
    const auto num_others = static_cast<double>(std::max<size_t>(tasks.size(), 2) - 1);
    const bool is_for_first = GoesToFirst(tasks);
    double all_even = 0;
    for (const TaskId id : tasks) {
      const schedule::Task& task = schedule_.tasks[id];
      const auto rank = static_cast<size_t>(task.lane.rank);
      double even = 0;
      for (const schedule::Term& term : task.work.link_bytes) {
        const bool is_constant = term.size.kind == schedule::SizeKind::kOne;
        const double sent = is_constant ? term.factor : term.factor * sizes_(term.size);
        sent_[rank] += sent;
        if (term.size.to >= 0) {
          received_[static_cast<size_t>(term.size.to)] += sent;
        } else if (is_for_first && !is_constant) {
          received_[0] += sent;
        } else {
          even += sent;
        }
      }
      received_[rank] -= even / num_others;  // it gets none of its own
      all_even += even;
    }
    for (const TaskId id : tasks) {
      received_[static_cast<size_t>(schedule_.tasks[id].lane.rank)] += all_even / num_others;
    }
  }

  double of(size_t rank) const { return sent_[rank] + received_[rank]; }

  // Of those that were counted.
  MovedBytes Moved(std::span<const TaskId> tasks) const {
    MovedBytes moved;
    double most = 0;
    for (const TaskId id : tasks) {
      const auto rank = static_cast<size_t>(schedule_.tasks[id].lane.rank);
      moved.all += sent_[rank];
      most = std::max({most, sent_[rank], received_[rank]});
    }
    if (moved.all > 0) moved.busiest = most * schedule_.num_ranks / moved.all;
    return moved;
  }

 private:
  // Whether what the ranks send is for rank 0, which has no rows to send itself.
  bool GoesToFirst(std::span<const TaskId> tasks) const {
    const TaskKind kind = schedule_.tasks[tasks.front()].kind;
    if (kind != TaskKind::kGatherRows && kind != TaskKind::kGatherLogits) return false;
    return std::ranges::none_of(tasks, [&](TaskId id) {
      const schedule::Task& task = schedule_.tasks[id];
      return task.lane.rank == 0 &&
             std::ranges::any_of(task.work.link_bytes, [](const schedule::Term& term) {
               return term.size.kind != schedule::SizeKind::kOne;
             });
    });
  }

  const schedule::Schedule& schedule_;
  const Sizes& sizes_;
  std::vector<double> sent_;  // by rank, as the next
  std::vector<double> received_;
};

// As many as a task has of its rank: loads have the one of their lane.
int ThreadsOf(const schedule::Task& task, const StepCosts& costs) {
  return task.kind == TaskKind::kLoadExperts ? std::max(1, costs.num_threads) : 1;
}

}  // namespace

bool LoadsBeside(const schedule::Task& task) {
  return task.kind == TaskKind::kLoadExperts && !task.after.empty();
}

namespace {

TaskCost LoadCostOf(double copying, double making, double bytes_per_weight) {
  const double rounded = copying + making;
  // Straight between nothing and all of it from int4, and so a sum of both.
  TaskCost cost;
  cost.per_weight_byte = {.at = {kNoProducts, 1 / bytes_per_weight}, .value = {copying, rounded}};
  cost.most_flops = cost.most_groups = kAnyAmount;
  return cost;
}

}  // namespace

TaskCost LoadCost(const LoadRates& rates, double bytes_per_weight) {
  return LoadCostOf(1 / rates.copied_bytes_per_second,
                    1 / (rates.weights_per_second * bytes_per_weight), bytes_per_weight);
}

TaskCost LoadCostBeside(const LoadRates& rates, double bytes_per_weight) {
  return LoadCostOf(rates.copying_beside / rates.copied_bytes_per_second,
                    rates.making_beside / (rates.weights_per_second * bytes_per_weight),
                    bytes_per_weight);
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
  if (seconds.at.size() < 2) return 0;
  // From so much of the largest size on: the last two points may be near each other, and what each
  // is off by would be all there is between them.
  constexpr double kLasting = 0.125;
  const double most = seconds.at.back();
  const double from = std::max(kLasting * most, seconds.at.front());
  return std::max(0.0, (seconds.value.back() - SecondsOf(from)) / (most - from));
}

MovedBytes BytesOf(const schedule::Schedule& schedule, std::span<const TaskId> tasks,
                   const Sizes& sizes) {
  BytesByRank by_rank(schedule, sizes);
  by_rank.Count(tasks);
  return by_rank.Moved(tasks);
}

MovedBytes BytesOfSenders(std::span<const double> sent, int num_ranks) {
  MovedBytes moved;
  double most = 0;
  for (const double bytes : sent) {
    moved.all += bytes;
    most = std::max(most, bytes);
  }
  // Who sends next to nothing is who receives.
  const auto num_receivers =
      std::ranges::count_if(sent, [&](double bytes) { return bytes < 1e-3 * most; });
  if (num_receivers > 0) most = std::max(most, moved.all / static_cast<double>(num_receivers));
  if (moved.all > 0) moved.busiest = most * num_ranks / moved.all;
  return moved;
}

double StepCosts::TaskSeconds(const TaskCost& cost, int rank, const TaskParts& parts,
                              const MachineState& state) const {
  const double all = cost.Seconds(parts, state);
  if (rank_states.empty()) return all;
  const MachineState& of_rank = rank_states[static_cast<size_t>(rank)];
  const double of_cores = cost.SecondsOfCores(parts, state);
  return (all - of_cores) * of_rank.memory + of_cores * of_rank.compute;
}

double StepCosts::ExchangeSeconds(TaskKind kind, const MovedBytes& bytes,
                                  const MachineState& state) const {
  const double on_link = exchange.SecondsOf(exchange.EvenBytes(bytes));
  // Packing is in a curve of the very plan's exchanges already.
  if (kind != TaskKind::kMoveExperts || exchange.is_of_plan) return on_link;
  const double rate =
      copy_bytes_per_second > 0 ? copy_bytes_per_second : reference.read_bytes_per_second / 2;
  if (!(rate > 0)) return on_link;
  return on_link + 2 * bytes.all / num_ranks / rate * state.memory;
}

const std::optional<TaskCost>& StepCosts::CostOf(TaskKind kind) const {
  return tasks[static_cast<size_t>(MeasuredAs(kind))];
}

void StepCosts::SwapCaches() {
  constexpr auto kAttention = static_cast<size_t>(TaskKind::kAttention);
  std::swap(tasks[kAttention], int8_attention);
  std::swap(held_out[kAttention], int8_attention_held_out);
}

void StepCosts::SwapCachedTasks() {
  for (size_t kind = 0; kind < tasks.size(); ++kind) {
    if (cached_tasks[kind]) std::swap(tasks[kind], cached_tasks[kind]);
  }
}

void StepCosts::LearntFrom(const std::string& name) {
  if (name.empty() || std::find(learnt_from.begin(), learnt_from.end(), name) != learnt_from.end())
    return;
  learnt_from.push_back(name);
  if (learnt_from.size() > kMostLearntFrom) learnt_from.erase(learnt_from.begin());
}

bool Overlaps(const schedule::Schedule& schedule) {
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), [](const schedule::Task& task) {
    // The chunks of a divided head are one behind the other, and nothing is beside them.
    const bool is_chunk = task.chunk > 0 && task.kind != TaskKind::kGatherLogits;
    return IsCollective(task.kind) && (is_chunk || task.micro_batch > 0);
  });
}

Prices PriceSchedule(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                     const StepCosts& costs, const Sizes& sizes, const MachineState& state,
                     const DiskCost& disk) {
  CHECK(costs.rank_states.empty() || std::ssize(costs.rank_states) == schedule.num_ranks);
  Prices prices;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    prices.resources.push_back(
        {fmt::format("r{} cores", rank), ResourceKind::kCores, ConstantRate(1)});
  }
  const int32_t link = schedule.num_ranks;
  prices.resources.push_back({"link", ResourceKind::kLink, LinearRate(1, kLinkStreams)});
  const int32_t disk_resource = link + 1;
  const bool has_disk = disk.bytes_per_second > 0;
  if (has_disk) {
    prices.resources.push_back({"disk", ResourceKind::kDisk, ConstantRate(disk.bytes_per_second)});
  }
  const bool overlaps = Overlaps(schedule) && !costs.exchange.is_of_plan;
  BytesByRank bytes_by_rank(schedule, sizes);
  prices.first_demand.push_back(0);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const TaskId> tasks = graph.tasks_of(activity);
    const schedule::Task& task = schedule.tasks[tasks.front()];
    double fixed = 0;
    const auto ask = [&](int32_t resource, double amount, int32_t streams = 1) {
      if (amount > 0) {
        prices.demands.push_back({.resource = resource, .streams = streams, .amount = amount});
      }
    };
    if (IsCollective(task.kind)) {
      bytes_by_rank.Count(tasks);
      const MovedBytes bytes = bytes_by_rank.Moved(tasks);
      const double stretch = costs.exchange.Stretch(bytes.busiest);
      fixed = costs.exchange.once();
      // What ranks send one way leaves the other way to others, and has no more than its own.
      const double on_link = overlaps
                                 ? bytes.all * costs.exchange.lasting_seconds_per_byte() * stretch
                                 : costs.ExchangeSeconds(task.kind, bytes, state) - fixed;
      ask(link, on_link / stretch, static_cast<int32_t>(std::lround(kLinkStreams / stretch)));
      // Alone it takes no longer than on the link, whatever it takes from cores that compute.
      for (const TaskId id : tasks) {
        const int32_t rank = schedule.tasks[id].lane.rank;
        ask(rank, std::min(on_link, bytes_by_rank.of(static_cast<size_t>(rank)) *
                                        costs.exchange.core_seconds_per_byte));
      }
    } else if (const auto& cost = costs.CostOf(task.kind)) {
      const double seconds = costs.TaskSeconds(*cost, task.lane.rank, PartsOf(task, sizes), state);
      const double share = 1.0 / ThreadsOf(task, costs);
      fixed = (1 - share) * seconds;
      const double of_cores =
          LoadsBeside(task) && costs.load_beside
              ? costs.TaskSeconds(*costs.load_beside, task.lane.rank, PartsOf(task, sizes), state)
              : seconds;
      ask(task.lane.rank, share * of_cores);
    }
    if (has_disk) {
      const double bytes = Value(task.work.disk_bytes, sizes);
      ask(disk_resource, bytes);
      ask(task.lane.rank, bytes * disk.core_seconds_per_byte / costs.num_threads);
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
    if (has_work && !IsCollective(task.kind) && !costs.CostOf(task.kind)) {
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
    const auto& cost = costs.CostOf(task.kind);
    if (!cost) continue;
    const TaskParts parts = PartsOf(task, sizes);
    const double seconds = cost->Seconds(parts);
    all += seconds;
    if (cost->Extrapolates(parts)) beyond += seconds;
  }
  return all > 0 ? beyond / all : 0;
}

}  // namespace convene::cost
