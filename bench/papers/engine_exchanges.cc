#include "bench/papers/engine_exchanges.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "base/check.h"
#include "cost/prices.h"
#include "schedule/schedule.h"

namespace convene::papers {
namespace {

using schedule::TaskKind;

// All-reduce of fp16 by NCCL 2.27.3 on A100 SXM4 80GB, from a table of ai-dynamo/aiconfigurator
// (a100_sxm_comm_nccl_2.27.3, Apache-2.0).
struct MeasuredAllReduce {
  double bytes;
  double four_ranks_us;
  double eight_ranks_us;
};
constexpr MeasuredAllReduce kAllReduces[] = {
    {512, 14.54, 22.57},         {1024, 13.86, 21.77},        {2048, 14.17, 21.53},
    {4096, 14.30, 21.43},        {8192, 14.68, 21.27},        {16384, 16.28, 22.55},
    {32768, 17.37, 25.96},       {65536, 17.80, 28.06},       {131072, 17.80, 27.41},
    {262144, 18.15, 27.50},      {524288, 22.93, 30.08},      {1 << 20, 29.78, 38.85},
    {1 << 21, 46.22, 53.70},     {1 << 22, 68.76, 77.31},     {1 << 23, 111.00, 128.00},
    {1 << 24, 183.50, 216.50},   {1 << 25, 288.00, 367.00},   {1 << 26, 544.30, 595.30},
    {1 << 27, 1000.50, 1169.10}, {1 << 28, 1926.60, 2182.50}, {1 << 29, 3716.30, 4225.90}};
constexpr double kLinkOfMeasured = 300e9;  // bytes per second in one direction

// Between two points by logarithms of both; beyond the last one at its rate.
double MeasuredSeconds(double bytes, int num_ranks) {
  CHECK(num_ranks == 4 || num_ranks == 8, "{} ranks", num_ranks);
  const auto seconds = [&](const MeasuredAllReduce& point) {
    return 1e-6 * (num_ranks == 4 ? point.four_ranks_us : point.eight_ranks_us);
  };
  const MeasuredAllReduce& last = *std::rbegin(kAllReduces);
  if (bytes <= kAllReduces[0].bytes) return seconds(kAllReduces[0]);
  if (bytes >= last.bytes) return seconds(last) * bytes / last.bytes;
  const auto* const above =
      std::ranges::lower_bound(kAllReduces, bytes, {}, &MeasuredAllReduce::bytes);
  const auto* const below = above - 1;
  const double share = std::log(bytes / below->bytes) / std::log(above->bytes / below->bytes);
  return seconds(*below) * std::pow(seconds(*above) / seconds(*below), share);
}

// Of all rows that the ranks of a collective exchange, where each sends what the others own, or
// gets their parts of what it owns.
double BytesOfRows(const schedule::Schedule& schedule, std::span<const schedule::TaskId> tasks,
                   const cost::Sizes& sizes) {
  double sent = 0;
  for (const schedule::TaskId id : tasks) {
    for (const schedule::Term& term : schedule.tasks[id].work.link_bytes) {
      sent += term.factor * (term.size.kind == schedule::SizeKind::kOne ? 1 : sizes(term.size));
    }
  }
  return sent / (static_cast<double>(tasks.size()) - 1);
}

bool IsGather(TaskKind kind) { return kind == TaskKind::kGatherNormed; }
bool IsScatter(TaskKind kind) { return kind == TaskKind::kScatterSums; }

// What the exchanges around sliced experts are: rows to all ranks, and sums to the rows' owners.
TaskKind AsCollective(TaskKind kind) {
  if (kind == TaskKind::kDispatch) return TaskKind::kGatherNormed;
  if (kind == TaskKind::kCombine) return TaskKind::kScatterSums;
  return kind;
}

}  // namespace

double AllReduceSeconds(double bytes, int num_ranks, double link_bytes_per_second) {
  const double ranks = num_ranks;
  // What a protocol loses, it loses by how long the link is busy: at the same ideal seconds.
  const double there = MeasuredSeconds(bytes * kLinkOfMeasured / link_bytes_per_second, num_ranks);
  const double ideal = 2 * bytes * (ranks - 1) / ranks / link_bytes_per_second;
  const double once = MeasuredSeconds(0, num_ranks);
  return once + std::max(ideal, there - once);
}

planner::PriceStep WithExchangesOfEngine(planner::PriceStep price, planner::PriceStep ring,
                                         double link_bytes_per_second,
                                         const strategy::Layout& layout) {
  const int num_ranks = layout.num_ranks();
  const bool has_slices = layout.expert_tp == num_ranks;
  const bool is_tensor = has_slices && layout.attention_tp == num_ranks;
  return [=](const model::ModelSpec& spec, const schedule::Schedule& schedule,
             const schedule::ActivityGraph& graph,
             const cost::Sizes& sizes) -> Result<cost::Prices> {
    Result<cost::Prices> priced = price(spec, schedule, graph, sizes);
    if (!priced) return priced;
    schedule::Schedule collectives = schedule;
    for (schedule::Task& task : collectives.tasks) {
      if (has_slices) task.kind = AsCollective(task.kind);
    }
    const Result<cost::Prices> of_ring = ring(spec, collectives, graph, sizes);
    if (!of_ring) return of_ring;
    cost::Prices prices{.resources = priced->resources,
                        .fixed_seconds = priced->fixed_seconds,
                        .first_demand = {0},
                        .demands = {}};
    for (int activity = 0; activity < graph.num_activities(); ++activity) {
      const auto tasks = graph.tasks_of(activity);
      const TaskKind kind = schedule.tasks[tasks.front()].kind;
      double& fixed = prices.fixed_seconds[activity];
      if ((has_slices && kind == TaskKind::kCounts) ||
          (is_tensor && IsGather(AsCollective(kind)))) {
        fixed = 0;
      } else if (is_tensor && IsScatter(AsCollective(kind))) {
        fixed =
            AllReduceSeconds(BytesOfRows(schedule, tasks, sizes), num_ranks, link_bytes_per_second);
      } else if (IsGather(collectives.tasks[tasks.front()].kind) ||
                 IsScatter(collectives.tasks[tasks.front()].kind)) {
        fixed = cost::SecondsAlone(*of_ring, activity);
      } else {
        const auto demands = priced->demands_of(activity);
        prices.demands.insert(prices.demands.end(), demands.begin(), demands.end());
      }
      prices.first_demand.push_back(static_cast<int32_t>(prices.demands.size()));
    }
    return prices;
  };
}

}  // namespace convene::papers
