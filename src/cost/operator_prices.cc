#include "cost/operator_prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/all_reduces.h"
#include "cost/exchange_costs.h"
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

  // `times`: of so many times the rows, with the same weights.
  OperatorSeconds of(const schedule::Task& task, double times = 1) {
    TaskParts parts = PartsOf(task, sizes_);
    parts.product_flops *= times;
    parts.row_bytes *= times;
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
  explicit FiguresOfExchanges(const ExchangeCosts& costs) : costs_(costs) {}

  double Once(TaskKind kind, double num_ranks) {
    const auto [found, is_new] = once_.try_emplace({kind, num_ranks});
    if (is_new) found->second = costs_.OnceOfCollective(kind, num_ranks);
    return found->second;
  }

  ExchangeCosts::Share OfCollective(TaskKind kind, double num_ranks, double bytes,
                                    double link_bytes_per_second) {
    const auto [found, is_new] =
        collectives_.try_emplace({kind, num_ranks, bytes, link_bytes_per_second});
    if (is_new) {
      found->second = costs_.OfCollective(kind, num_ranks, bytes, link_bytes_per_second);
    }
    return found->second;
  }

  ExchangeCosts::Share OfDispatch(TaskKind kind, double bytes, double link_bytes_per_second,
                                  double row_bytes, ExchangeMultiprocessors given) {
    const auto [found, is_new] =
        dispatches_.try_emplace({kind, row_bytes, bytes, link_bytes_per_second});
    if (is_new) {
      found->second = costs_.OfDispatch(kind, bytes, link_bytes_per_second, row_bytes, given);
    }
    return found->second;
  }

 private:
  using Key = std::tuple<TaskKind, double, double, double>;

  const ExchangeCosts& costs_;
  std::map<std::pair<TaskKind, double>, double> once_;
  std::map<Key, ExchangeCosts::Share> collectives_;
  std::map<Key, ExchangeCosts::Share> dispatches_;
};

// Whether a part of a step is computed while another one exchanges.
bool IsCut(const schedule::Schedule& schedule) {
  return std::ranges::any_of(schedule.tasks, [](const schedule::Task& task) {
    return task.chunk > 0 || task.micro_batch > 0;
  });
}

// Prices of a schedule's activities, one after the other.
class SchedulePricer {
 public:
  SchedulePricer(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                 const OperatorCosts& costs, const Sizes& sizes)
      : schedule_(schedule),
        graph_(graph),
        costs_(costs),
        sizes_(sizes),
        given_(costs.GivenToExchanges(IsCut(schedule))),
        levels_(costs.machine().links, schedule.num_ranks),
        seconds_of_tasks_(schedule, costs, sizes),
        exchanges_(costs.exchanges()),
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
    if (costs.exchanges().HasAllReduce()) {
      for (const AllReduce& all_reduce : FindAllReduces(schedule, graph, costs.spec(), sizes)) {
        Decide(all_reduce);
      }
    }
  }

  void Add(int activity) {
    const auto tasks = graph_.tasks_of(activity);
    const schedule::Task& task = schedule_.tasks[tasks.front()];
    double fixed = 0;
    if (!IsCollective(task.kind)) {
      AddComputation(task);
    } else if (const auto decided = decided_.find(activity); decided != decided_.end()) {
      fixed = AddExchange(decided->second, tasks);
    } else {
      fixed = AddExchange(ShortestWay(tasks), tasks);
    }
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

  // One of the ways that an exchange may take, by some links and some kernels.
  struct Way {
    double fixed = 0;         // seconds, as is the next one
    double longest = 0;       // of a level
    double rate = 0;          // that the links of that level reach
    int multiprocessors = 0;  // that the exchange takes there; 0: as many as the rate needs
    bool is_extrapolated = false;
    std::vector<Demand> demands = {};

    double seconds() const { return fixed + longest; }
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

  // Bytes per second at most that the plan's multiprocessors move; 0: it gives none. A budget is
  // of the exchanges of experts.
  double MostOfGiven(TaskKind kind) const {
    const bool is_of_experts = kind == TaskKind::kDispatch || kind == TaskKind::kCombine;
    const bool is_given = given_.number > 0 && (is_of_experts || !given_.is_most);
    return is_given ? given_.number * kBytesPerMultiprocessor : 0;
  }

  // Adds what the links of a level have to carry, with the share of their rate that is reached.
  static void AddLevel(const ExchangeLevels::LevelLoads& loads, const LinkLevel& link,
                       const ExchangeCosts::Share& share, Way& way) {
    for (const ExchangeLevels::Load& load : loads.loads) {
      way.demands.push_back({.resource = load.resource, .amount = load.bytes / share.efficiency});
    }
    const double reached = link.bytes_per_second * share.efficiency;
    if (loads.most_bytes / reached <= way.longest) return;
    way.longest = loads.most_bytes / reached;
    way.rate = reached;
    way.multiprocessors = share.multiprocessors;
    way.is_extrapolated = share.is_extrapolated;
  }

  Way WayFrom(int first_level, std::span<const TaskId> tasks) {
    const TaskKind kind = schedule_.tasks[tasks.front()].kind;
    const auto num_ranks = static_cast<double>(tasks.size());
    const double most = MostOfGiven(kind);
    Way way{.fixed = num_ranks > 1 ? exchanges_.Once(kind, num_ranks) : 0};
    const auto loads = levels_.LoadsOf(schedule_, tasks, sizes_, first_level);
    for (int index = first_level; index < levels_.num_levels(); ++index) {
      const ExchangeLevels::LevelLoads& of_level = loads[index];
      if (of_level.loads.empty()) continue;
      const LinkLevel& link = levels_.level(index);
      if (index > first_level) way.fixed += link.latency_seconds;
      ExchangeCosts::Share share = exchanges_.OfCollective(
          kind, of_level.num_ranks, of_level.most_bytes, link.bytes_per_second);
      if (most > 0) share.efficiency = std::min(share.efficiency, most / link.bytes_per_second);
      AddLevel(of_level, link, share, way);
    }
    return way;
  }

  // By kernels that need one link among all ranks of the exchange: the loads of that level. Nothing
  // if it crosses others, too.
  std::optional<ExchangeLevels::LevelLoads> OfOneLevel(std::span<const TaskId> tasks) const {
    std::vector<ExchangeLevels::LevelLoads> loads = levels_.LoadsOf(schedule_, tasks, sizes_);
    for (size_t index = 1; index < loads.size(); ++index) {
      if (!loads[index].loads.empty()) return std::nullopt;
    }
    if (loads.front().loads.empty()) return std::nullopt;
    return std::move(loads.front());
  }

  // By kernels of dispatch and combine whose rate is known over their multiprocessors.
  std::optional<Way> WayByDispatch(std::span<const TaskId> tasks) {
    const TaskKind kind = schedule_.tasks[tasks.front()].kind;
    if (!costs_.exchanges().HasDispatch(kind, static_cast<double>(tasks.size()))) {
      return std::nullopt;
    }
    // They send rows to the ranks of their experts, and do not gather all rows on all ranks.
    if (IsGather(schedule_, tasks, costs_.spec(), sizes_) ||
        IsScatter(schedule_, tasks, costs_.spec(), sizes_)) {
      return std::nullopt;
    }
    const auto loads = OfOneLevel(tasks);
    if (!loads) return std::nullopt;
    const LinkLevel& link = levels_.level(0);
    const ExchangeCosts::Share share = exchanges_.OfDispatch(
        kind, loads->most_bytes, link.bytes_per_second, RowBytes(tasks), given_);
    Way way{.fixed = share.once};
    AddLevel(*loads, link, share, way);
    return way;
  }

  // The way that is the shortest where it has the links to itself. If the plan says how many
  // multiprocessors its exchanges have, kernels of which that was measured go before others.
  Way ShortestWay(std::span<const TaskId> tasks) {
    std::optional<Way> by_dispatch = WayByDispatch(tasks);
    if (by_dispatch && given_.number > 0) return *std::move(by_dispatch);
    Way way = WayFrom(0, tasks);
    for (const int first_level : levels_.first_levels()) {
      if (first_level == 0) continue;
      Way other = WayFrom(first_level, tasks);
      if (other.seconds() < way.seconds()) way = std::move(other);
    }
    if (by_dispatch && by_dispatch->seconds() < way.seconds()) way = *std::move(by_dispatch);
    return way;
  }

  // As one of the two halves of an all-reduce.
  std::optional<Way> WayOfHalf(std::span<const TaskId> tasks) const {
    const auto loads = OfOneLevel(tasks);
    if (!loads) return std::nullopt;
    const LinkLevel& link = levels_.level(0);
    auto share = costs_.exchanges().OfHalfAllReduce(static_cast<double>(tasks.size()),
                                                    loads->most_bytes, link.bytes_per_second);
    if (!share) return std::nullopt;
    if (const double most = MostOfGiven(schedule_.tasks[tasks.front()].kind); most > 0) {
      share->efficiency = std::min(share->efficiency, most / link.bytes_per_second);
    }
    Way way{.fixed = share->once};
    AddLevel(*loads, link, *share, way);
    return way;
  }

  // What ranks compute longer if each norms and routes all rows, and not its own alone.
  double SecondsOfAllRows(const AllReduce& all_reduce) {
    const auto num_ranks = static_cast<double>(graph_.tasks_of(all_reduce.gather).size());
    std::map<int, double> of_rank;
    for (const TaskId id : all_reduce.passes) {
      const schedule::Task& task = schedule_.tasks[id];
      of_rank[task.lane.rank] +=
          seconds_of_tasks_.of(task, num_ranks).seconds - seconds_of_tasks_.of(task).seconds;
    }
    double longest = 0;
    for (const auto& [rank, seconds] : of_rank) longest = std::max(longest, seconds);
    return longest;
  }

  // A scatter and the gather behind it are an all-reduce where that is shorter than both.
  void Decide(const AllReduce& all_reduce) {
    const auto scatter_tasks = graph_.tasks_of(all_reduce.scatter);
    const auto gather_tasks = graph_.tasks_of(all_reduce.gather);
    std::optional<Way> scatter = WayOfHalf(scatter_tasks);
    std::optional<Way> gather = WayOfHalf(gather_tasks);
    if (!scatter || !gather) return;
    gather->fixed += SecondsOfAllRows(all_reduce);
    double apart = ShortestWay(scatter_tasks).seconds() + ShortestWay(gather_tasks).seconds();
    if (all_reduce.counts >= 0) {
      apart += ShortestWay(graph_.tasks_of(all_reduce.counts)).seconds();
    }
    if (scatter->seconds() + gather->seconds() >= apart) return;
    decided_[all_reduce.scatter] = *std::move(scatter);
    decided_[all_reduce.gather] = *std::move(gather);
    if (all_reduce.counts >= 0) decided_[all_reduce.counts] = {};
  }

  // Its fixed seconds.
  double AddExchange(const Way& way, std::span<const TaskId> tasks) {
    const double seconds = way.seconds() * static_cast<double>(tasks.size());
    sum_ += {.seconds = seconds, .extrapolated = way.is_extrapolated ? seconds : 0};
    prices_.demands.insert(prices_.demands.end(), way.demands.begin(), way.demands.end());
    if (way.longest > 0 && num_multiprocessors_ > 0) {
      for (const TaskId id : tasks) {
        AddDevice(schedule_.tasks[id].lane.rank, way.longest, MultiprocessorsOf(way));
      }
    }
    return way.fixed;
  }

  int MultiprocessorsOf(const Way& way) const {
    if (way.multiprocessors > 0) return way.multiprocessors;
    if (given_.number > 0 && !given_.is_most) {
      return std::min(given_.number, std::max(1, num_multiprocessors_ / 2));
    }
    return costs_.exchanges().MultiprocessorsFor(way.rate);
  }

  const schedule::Schedule& schedule_;
  const schedule::ActivityGraph& graph_;
  const OperatorCosts& costs_;
  const Sizes& sizes_;
  ExchangeMultiprocessors given_;
  ExchangeLevels levels_;
  SecondsOfTasks seconds_of_tasks_;
  FiguresOfExchanges exchanges_;
  int num_multiprocessors_;
  std::optional<int32_t> disk_ = {};  // among the resources
  OperatorSeconds sum_;               // of all tasks, those of each rank
  std::map<int, Way> decided_;        // by activity: those of all-reduces
  Prices prices_;
};

}  // namespace

OperatorPrices PriceSchedule(const schedule::Schedule& schedule,
                             const schedule::ActivityGraph& graph, const OperatorCosts& costs,
                             const Sizes& sizes) {
  SchedulePricer pricer(schedule, graph, costs, sizes);
  for (int activity = 0; activity < graph.num_activities(); ++activity) pricer.Add(activity);
  return std::move(pricer).Take();
}

}  // namespace convene::cost
