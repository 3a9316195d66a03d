// Tasks per second of the simulator, with everything that a search pays per candidate: the graph,
// the prices and the simulation. Expert pipelines over several ranks; from all tasks alone on their
// resources to all of them sharing one memory and one link.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "simulate/simulate.h"

namespace convene {
namespace {

using schedule::LaneKind;
using schedule::SizeKind;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;

// Each layer: attention, then `chunks` times dispatch, experts and combine, overlapped.
schedule::Schedule Pipeline(int num_ranks, int num_layers, int chunks) {
  schedule::Schedule schedule = {.num_ranks = num_ranks};
  std::vector<std::vector<TaskId>> before(num_ranks);
  int collective = 0;
  const auto add = [&](Task task) {
    schedule.tasks.push_back(std::move(task));
    return static_cast<TaskId>(schedule.tasks.size()) - 1;
  };
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const TaskId attention = add({.kind = TaskKind::kAttention,
                                    .lane = {rank, LaneKind::kCompute},
                                    .layer = layer,
                                    .after = before[rank],
                                    .work = {.flops = {{3e7, {SizeKind::kRows, -1, -1, rank}}},
                                             .memory_bytes = schedule::Constant(3e7)}});
      before[rank].clear();
      for (int chunk = 0; chunk < chunks; ++chunk) {
        Task dispatch = {.kind = TaskKind::kDispatch,
                         .lane = {rank, LaneKind::kSend},
                         .layer = layer,
                         .chunk = chunk,
                         .after = {attention},
                         .collective = collective + 2 * chunk};
        for (int to = 0; to < num_ranks; ++to) {
          if (to == rank) continue;
          dispatch.work.link_bytes.push_back({4096, {SizeKind::kSent, layer, chunk, rank, to}});
        }
        const TaskId sent = add(dispatch);
        const TaskId experts =
            add({.kind = TaskKind::kExperts,
                 .lane = {rank, LaneKind::kCompute},
                 .layer = layer,
                 .chunk = chunk,
                 .after = {sent},
                 .work = {.flops = {{1.2e7, {SizeKind::kSlots, layer, chunk, rank}}},
                          .memory_bytes = {{1.2e7, {SizeKind::kExperts, layer, chunk, rank}}}}});
        Task combine = dispatch;
        combine.kind = TaskKind::kCombine;
        combine.lane.kind = LaneKind::kReceive;
        combine.after = {experts};
        combine.collective = collective + 2 * chunk + 1;
        for (schedule::Term& term : combine.work.link_bytes) term.size.kind = SizeKind::kReturned;
        before[rank].push_back(add(combine));
      }
    }
    collective += 2 * chunks;
  }
  return schedule;
}

double SecondsOf(const schedule::Schedule& schedule, const cost::Rates& rates) {
  const cost::Sizes sizes = [](const schedule::Size& size) {
    return size.kind == SizeKind::kRows ? 512.0 : 64.0 + size.chunk;
  };
  double best = 1e9;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    const schedule::Timeline timeline = simulate::Simulate(schedule, rates, sizes);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    CHECK(timeline.seconds() > 0);
    best = std::min(best, seconds.count());
  }
  return best;
}

void Measure(std::string_view name, int num_ranks, const cost::Rates& rates) {
  const schedule::Schedule schedule = Pipeline(num_ranks, 64, 8);
  const double seconds = SecondsOf(schedule, rates);
  fmt::print("{:28} {:2} ranks {:7} tasks {:6.2f} M tasks/s\n", name, num_ranks,
             schedule.tasks.size(), static_cast<double>(schedule.tasks.size()) / seconds / 1e6);
}

}  // namespace
}  // namespace convene

int main() {
  using convene::cost::ConstantRate;
  for (const int num_ranks : {1, 2, 4, 8}) {
    convene::cost::Rates rates = {
        .ranks = {{.flops = ConstantRate(1e11), .memory = ConstantRate(1e11)}},
        .link_bytes_per_second = 1e9,
        .link_latency = 1e-5};
    convene::Measure("own resources", num_ranks, rates);
    rates.shared_memory = ConstantRate(2e10);
    convene::Measure("one memory", num_ranks, rates);
    rates.link = convene::cost::LinkKind::kSharedMedium;
    rates.link_core_seconds_per_byte = 5e-10;
    convene::Measure("one memory, one link, cores", num_ranks, rates);
  }
}
