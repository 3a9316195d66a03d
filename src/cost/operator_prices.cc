#include "cost/operator_prices.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/exchange_levels.h"

namespace convene::cost {
namespace {

using schedule::TaskId;
using schedule::TaskKind;

constexpr double kBytesPerGb = 1e9;

// By layer, whether queries, keys and values are tasks of their own.
std::set<std::pair<bool, int>> ProjectedLayers(const schedule::Schedule& schedule) {
  std::set<std::pair<bool, int>> layers;
  for (const schedule::Task& task : schedule.tasks) {
    if (task.kind == TaskKind::kProject) layers.insert({task.encoder, task.layer});
  }
  return layers;
}

// Seconds of tasks; ranks that are alike have many of the same.
class SecondsOfTasks {
 public:
  SecondsOfTasks(const schedule::Schedule& schedule, const OperatorCosts& costs, const Sizes& sizes)
      : costs_(costs), sizes_(sizes), projected_(ProjectedLayers(schedule)) {}

  OperatorSeconds of(const schedule::Task& task) {
    const TaskParts parts = PartsOf(task, sizes_);
    const Key key = {static_cast<double>(task.kind),
                     static_cast<double>(task.layer),
                     task.encoder ? 1.0 : 0.0,
                     static_cast<double>(task.block),
                     parts.product_flops,
                     parts.weight_bytes,
                     parts.groups,
                     parts.score_flops,
                     parts.cache_bytes,
                     parts.row_bytes};
    const auto [found, is_new] = seconds_.try_emplace(key);
    if (is_new) {
      const bool is_projected = projected_.contains({task.encoder, task.layer});
      found->second = costs_.TaskSeconds(task, parts, is_projected);
    }
    return found->second;
  }

 private:
  using Key = std::array<double, 10>;

  const OperatorCosts& costs_;
  const Sizes& sizes_;
  std::set<std::pair<bool, int>> projected_;
  std::map<Key, OperatorSeconds> seconds_;
};

// Figures of exchanges; those of alike layers are the same.
class FiguresOfExchanges {
 public:
  explicit FiguresOfExchanges(const OperatorCosts& costs) : costs_(costs) {}

  double Once(TaskKind kind, double num_ranks) {
    const auto [found, is_new] = once_.try_emplace({kind, num_ranks});
    if (is_new) found->second = costs_.ExchangeOnce(kind, num_ranks);
    return found->second;
  }

  OperatorCosts::LinkShare Efficiency(TaskKind kind, double num_ranks, double bytes,
                                      double link_bytes_per_second, double row_bytes) {
    const auto [found, is_new] =
        efficiency_.try_emplace({kind, num_ranks, bytes, link_bytes_per_second, row_bytes});
    if (is_new) {
      found->second =
          costs_.LinkEfficiency(kind, num_ranks, bytes, link_bytes_per_second, row_bytes);
    }
    return found->second;
  }

 private:
  const OperatorCosts& costs_;
  std::map<std::pair<TaskKind, double>, double> once_;
  std::map<std::tuple<TaskKind, double, double, double, double>, OperatorCosts::LinkShare>
      efficiency_;
};

// Prices of a schedule's activities, one after the other.
class SchedulePricer {
 public:
  SchedulePricer(const schedule::Schedule& schedule, const OperatorCosts& costs, const Sizes& sizes)
      : schedule_(schedule),
        costs_(costs),
        sizes_(sizes),
        levels_(costs.machine().links, schedule.num_ranks),
        seconds_of_tasks_(schedule, costs, sizes),
        exchanges_(costs),
        num_multiprocessors_(costs.device().num_multiprocessors) {
    const RateCurve device =
        num_multiprocessors_ > 0 ? LinearRate(1, num_multiprocessors_) : ConstantRate(1);
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      prices_.resources.push_back({fmt::format("r{} device", rank), ResourceKind::kCores, device});
    }
    levels_.AddResources(prices_.resources);
    const double disk_gbps = costs.machine().machine.disk_gbps;
    if (disk_gbps > 0) {
      disk_ = static_cast<int32_t>(prices_.resources.size());
      prices_.resources.push_back(
          {"disk", ResourceKind::kDisk, ConstantRate(kBytesPerGb * disk_gbps)});
    }
    prices_.first_demand.push_back(0);
  }

  void Add(std::span<const TaskId> tasks) {
    const schedule::Task& task = schedule_.tasks[tasks.front()];
    const double fixed = IsCollective(task.kind) ? AddExchange(tasks) : 0;
    if (!IsCollective(task.kind)) AddComputation(task);
    prices_.fixed_seconds.push_back(fixed);
    prices_.first_demand.push_back(static_cast<int32_t>(prices_.demands.size()));
  }

  OperatorPrices Take() && {
    const double share = sum_.seconds > 0 ? sum_.extrapolated / sum_.seconds : 0;
    return {.prices = std::move(prices_), .extrapolated_share = share};
  }

 private:
  void AddComputation(const schedule::Task& task) {
    if (!task.work.disk_bytes.empty()) {
      const double bytes = Value(task.work.disk_bytes, sizes_);
      if (disk_ && bytes > 0) prices_.demands.push_back({.resource = *disk_, .amount = bytes});
      return;
    }
    const OperatorSeconds of_task = seconds_of_tasks_.of(task);
    sum_ += of_task;
    if (!(of_task.seconds > 0)) return;
    AddDevice(task.lane.rank, of_task.seconds, costs_.MultiprocessorsOf(task.kind));
  }

  // A device for so many seconds, or so many of its multiprocessors.
  void AddDevice(int rank, double seconds, int multiprocessors) {
    Demand demand{.resource = rank, .amount = seconds};
    if (num_multiprocessors_ > 0) {
      demand.streams = multiprocessors;
      demand.amount *= double(multiprocessors) / num_multiprocessors_;
    }
    prices_.demands.push_back(demand);
  }

  // One of the ways that an exchange may take, and what the links of its levels lose.
  struct Way {
    double fixed = 0;         // seconds, as is the next one
    double longest = 0;       // of a level
    double rate = 0;          // that the links of that level reach
    int multiprocessors = 0;  // that the exchange takes there; 0: as many as the rate needs
    bool is_extrapolated = false;
    std::vector<Demand> demands = {};
  };

  // Of a token that is sent to its experts' ranks or returned; 0: of none.
  double RowBytes(std::span<const TaskId> tasks) const {
    for (const TaskId id : tasks) {
      for (const schedule::Term& term : schedule_.tasks[id].work.link_bytes) {
        const schedule::SizeKind kind = term.size.kind;
        if (kind == schedule::SizeKind::kSent || kind == schedule::SizeKind::kReturned) {
          return term.factor;
        }
      }
    }
    return 0;
  }

  Way WayFrom(int first_level, std::span<const TaskId> tasks) {
    const TaskKind kind = schedule_.tasks[tasks.front()].kind;
    const auto num_ranks = static_cast<double>(tasks.size());
    const double row_bytes = RowBytes(tasks);
    Way way{.fixed = num_ranks > 1 ? exchanges_.Once(kind, num_ranks) : 0};
    const auto loads = levels_.LoadsOf(schedule_, tasks, sizes_, first_level);
    for (int index = first_level; index < levels_.num_levels(); ++index) {
      const ExchangeLevels::LevelLoads& of_level = loads[index];
      if (of_level.loads.empty()) continue;
      const LinkLevel& link = levels_.level(index);
      if (index > first_level) way.fixed += link.latency_seconds;
      const OperatorCosts::LinkShare share = exchanges_.Efficiency(
          kind, of_level.num_ranks, of_level.most_bytes, link.bytes_per_second, row_bytes);
      for (const ExchangeLevels::Load& load : of_level.loads) {
        way.demands.push_back({.resource = load.resource, .amount = load.bytes / share.efficiency});
      }
      const double reached = link.bytes_per_second * share.efficiency;
      if (of_level.most_bytes / reached <= way.longest) continue;
      way.longest = of_level.most_bytes / reached;
      way.rate = reached;
      way.multiprocessors = share.multiprocessors;
      way.is_extrapolated = share.is_extrapolated;
    }
    return way;
  }

  // Its fixed seconds. It takes the way that is the shortest where it has the links to itself.
  double AddExchange(std::span<const TaskId> tasks) {
    Way way = WayFrom(0, tasks);
    for (const int first_level : levels_.first_levels()) {
      if (first_level == 0) continue;
      Way other = WayFrom(first_level, tasks);
      if (other.fixed + other.longest < way.fixed + way.longest) way = std::move(other);
    }
    const double seconds = (way.fixed + way.longest) * static_cast<double>(tasks.size());
    sum_ += {.seconds = seconds, .extrapolated = way.is_extrapolated ? seconds : 0};
    prices_.demands.insert(prices_.demands.end(), way.demands.begin(), way.demands.end());
    if (way.longest > 0 && num_multiprocessors_ > 0) {
      const int multiprocessors = way.multiprocessors > 0
                                      ? way.multiprocessors
                                      : costs_.MultiprocessorsOfExchange(way.rate);
      for (const TaskId id : tasks) {
        AddDevice(schedule_.tasks[id].lane.rank, way.longest, multiprocessors);
      }
    }
    return way.fixed;
  }

  const schedule::Schedule& schedule_;
  const OperatorCosts& costs_;
  const Sizes& sizes_;
  ExchangeLevels levels_;
  SecondsOfTasks seconds_of_tasks_;
  FiguresOfExchanges exchanges_;
  int num_multiprocessors_;
  std::optional<int32_t> disk_ = {};  // among the resources
  OperatorSeconds sum_;               // of all tasks, those of each rank
  Prices prices_;
};

}  // namespace

OperatorPrices PriceSchedule(const schedule::Schedule& schedule,
                             const schedule::ActivityGraph& graph, const OperatorCosts& costs,
                             const Sizes& sizes) {
  SchedulePricer pricer(schedule, costs, sizes);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    pricer.Add(graph.tasks_of(activity));
  }
  return std::move(pricer).Take();
}

}  // namespace convene::cost
