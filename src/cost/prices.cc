#include "cost/prices.h"

#include <fmt/format.h>

#include <algorithm>

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Task;
using schedule::TaskId;

constexpr int kNone = -1;

// The resources of a rank, as places in Prices::resources; kNone: costs no time.
struct RankResources {
  int cores = kNone;
  int host = kNone;
  int memory = kNone;
  int host_memory = kNone;
  int out = kNone;
  int in = kNone;
  int load = kNone;
  int store = kNone;
  int stage = kNone;
  int disk = kNone;
};

class Pricer {
 public:
  Pricer(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
         const Rates& rates, const Sizes& sizes)
      : schedule_(schedule), graph_(graph), rates_(rates), sizes_(sizes) {
    AddResources();
    demand_of_resource_.assign(prices_.resources.size(), -1);
    even_bytes_.reserve(schedule.num_ranks);
  }

  Prices Run() && {
    prices_.fixed_seconds.reserve(graph_.num_activities());
    prices_.first_demand.reserve(graph_.num_activities() + 1);
    prices_.demands.reserve(schedule_.tasks.size() * 2);
    prices_.first_demand.push_back(0);
    for (int activity = 0; activity < graph_.num_activities(); ++activity) {
      PriceActivity(graph_.tasks_of(activity));
      prices_.first_demand.push_back(static_cast<int32_t>(prices_.demands.size()));
    }
    return std::move(prices_);
  }

 private:
  int Add(std::string name, ResourceKind kind, RateCurve rate) {
    if (rate.empty() || rate.rates.back() <= 0) return kNone;
    prices_.resources.push_back({std::move(name), kind, std::move(rate)});
    return static_cast<int>(prices_.resources.size()) - 1;
  }

  void AddResources() {
    RankResources shared;
    shared.memory = Add("memory", ResourceKind::kMemory, rates_.shared_memory);
    shared.disk =
        Add("disk", ResourceKind::kDisk, ConstantRate(rates_.shared_disk_bytes_per_second));
    const RateCurve link = ConstantRate(rates_.link_bytes_per_second);
    if (rates_.link == LinkKind::kSharedMedium) {
      shared.out = Add("link", ResourceKind::kLink, link);
    }
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      const auto add = [&](const char* what, ResourceKind kind, const RateCurve& rate) {
        return Add(fmt::format("r{} {}", rank, what), kind, rate);
      };
      const RankRates& rates = rates_.of(rank);
      RankResources own = shared;
      own.cores = add("cores", ResourceKind::kCores, rates.flops);
      own.host = rates.host_flops.empty()
                     ? own.cores
                     : add("host cores", ResourceKind::kCores, rates.host_flops);
      if (own.memory == kNone) own.memory = add("memory", ResourceKind::kMemory, rates.memory);
      own.host_memory = rates.host_memory.empty()
                            ? own.memory
                            : add("host memory", ResourceKind::kMemory, rates.host_memory);
      if (own.disk == kNone) {
        own.disk = add("disk", ResourceKind::kDisk, ConstantRate(rates.disk_bytes_per_second));
      }
      if (rates_.link == LinkKind::kPerRank) {
        own.out = add("out", ResourceKind::kLink, link);
        own.in = add("in", ResourceKind::kLink, link);
      }
      own.load = add("load", ResourceKind::kLink, ConstantRate(rates.load_bytes_per_second));
      own.store = add("store", ResourceKind::kLink, ConstantRate(rates.store_bytes_per_second));
      own.stage = add("stage", ResourceKind::kLink, ConstantRate(rates.stage_bytes_per_second));
      ranks_.push_back(own);
    }
  }

  // Adds to what the activity asks of the resource already.
  void Ask(int resource, double amount, int streams) {
    if (resource == kNone || !(amount > 0)) return;
    int32_t& place = demand_of_resource_[resource];
    if (place < prices_.first_demand.back()) {
      place = static_cast<int32_t>(prices_.demands.size());
      prices_.demands.push_back({.resource = resource, .streams = 0});
    }
    prices_.demands[place].amount += amount;
    prices_.demands[place].streams += streams;
  }

  int TierOf(const RankResources& rank, LaneKind lane) const {
    switch (lane) {
      case LaneKind::kLoad:
        return rank.load;
      case LaneKind::kStore:
        return rank.store;
      case LaneKind::kStage:
        return rank.stage;
      default:
        return kNone;
    }
  }

  // Bytes that one rank of a collective sends; those that name a receiver arrive there, the rest
  // evenly at all others (AskReceived).
  void AskSent(const Task& task) {
    const RankResources& own = ranks_[task.lane.rank];
    double total = 0;
    double even = 0;
    for (const schedule::Term& term : task.work.link_bytes) {
      const double bytes = term.size.kind == schedule::SizeKind::kOne
                               ? term.factor
                               : term.factor * sizes_(term.size);
      total += bytes;
      if (term.size.to < 0) {
        even += bytes;
      } else if (rates_.link == LinkKind::kPerRank) {
        Ask(ranks_[term.size.to].in, bytes, 1);
      }
    }
    Ask(own.out, total, 1);
    if (rates_.link_core_seconds_per_byte > 0 && own.cores != kNone) {
      Ask(own.cores,
          total * rates_.link_core_seconds_per_byte * rates_.of(task.lane.rank).flops.at(1), 1);
    }
    even_bytes_.push_back(even);
  }

  void AskReceived(std::span<const TaskId> tasks) {
    if (rates_.link != LinkKind::kPerRank || tasks.size() < 2) return;
    double sum = 0;
    for (const double bytes : even_bytes_) sum += bytes;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const double received = (sum - even_bytes_[i]) / static_cast<double>(tasks.size() - 1);
      Ask(ranks_[schedule_.tasks[tasks[i]].lane.rank].in, received, 1);
    }
  }

  // Of the lane's cores that a task takes.
  static int StreamsOf(const RankRates& rates, LaneKind lane) {
    const bool has_own_cores = lane == LaneKind::kHost && !rates.host_flops.empty();
    if (has_own_cores) return static_cast<int>(rates.host_flops.rates.size());
    const bool computes = lane == LaneKind::kCompute || lane == LaneKind::kHost;
    return computes ? std::max(1, rates.cores - rates.communication_cores) : 1;
  }

  void AskTask(const Task& task) {
    const RankResources& own = ranks_[task.lane.rank];
    const bool host = task.lane.kind == LaneKind::kHost;
    const int streams = StreamsOf(rates_.of(task.lane.rank), task.lane.kind);
    Ask(host ? own.host : own.cores, Value(task.work.flops, sizes_), streams);
    const bool in_host_memory = host || task.lane.kind == LaneKind::kStage;
    Ask(in_host_memory ? own.host_memory : own.memory, Value(task.work.memory_bytes, sizes_),
        streams);
    Ask(own.disk, Value(task.work.disk_bytes, sizes_), 1);
    if (task.collective >= 0) {
      AskSent(task);
    } else {
      Ask(TierOf(own, task.lane.kind), Value(task.work.link_bytes, sizes_), 1);
    }
  }

  void PriceActivity(std::span<const TaskId> tasks) {
    const Task& first = schedule_.tasks[tasks.front()];
    even_bytes_.clear();
    for (const TaskId id : tasks) AskTask(schedule_.tasks[id]);
    double fixed = rates_.fixed_seconds[static_cast<size_t>(first.kind)];
    if (first.collective >= 0) {
      AskReceived(tasks);
      fixed += rates_.link_latency;
    }
    prices_.fixed_seconds.push_back(fixed);
  }

  const schedule::Schedule& schedule_;
  const schedule::ActivityGraph& graph_;
  const Rates& rates_;
  const Sizes& sizes_;
  std::vector<RankResources> ranks_;
  std::vector<int32_t> demand_of_resource_;  // where this activity, or an earlier one, asks for it
  std::vector<double> even_bytes_;           // by task of the activity
  Prices prices_;
};

}  // namespace

Prices PriceSchedule(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                     const Rates& rates, const Sizes& sizes) {
  return Pricer(schedule, graph, rates, sizes).Run();
}

double SecondsAlone(const Prices& prices, int activity) {
  double slowest = 0;
  for (const Demand& demand : prices.demands_of(activity)) {
    const Resource& resource = prices.resources[demand.resource];
    slowest = std::max(slowest, demand.amount / resource.rate.at(demand.streams));
  }
  return prices.fixed_seconds[activity] + slowest;
}

}  // namespace convene::cost
