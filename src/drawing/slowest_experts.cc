#include "drawing/slowest_experts.h"

#include <algorithm>
#include <cstddef>

#include "drawing/constant_amount.h"

namespace convene::drawing {
namespace {

// What a task of a rank's experts has to do, and what it took.
struct ExpertTask {
  size_t rank = 0;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
};

struct Rates {
  double per_flop = 0;
  double per_byte = 0;

  double SecondsOf(const ExpertTask& task) const {
    return per_flop * task.flops + per_byte * task.bytes;
  }
};

std::vector<ExpertTask> ExpertTasksOf(const TracedStep& step,
                                      const std::vector<std::string>& roles) {
  std::vector<ExpertTask> tasks;
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const schedule::Task& task = step.schedule.tasks[id];
    const auto rank = static_cast<size_t>(task.lane.rank);
    if (task.kind != schedule::TaskKind::kExperts || roles[rank].empty()) continue;
    const ExpertTask found{.rank = rank,
                           .flops = ConstantValue(task.work.flops),
                           .bytes = ConstantValue(task.work.memory_bytes),
                           .seconds = step.measured.tasks[id].seconds()};
    if (found.flops > 0 || found.bytes > 0) tasks.push_back(found);
  }
  return tasks;
}

// Least squares over the tasks of all other ranks; neither rate is below zero. Where their FLOPs
// and bytes are always in proportion, FLOPs alone.
Rates RatesOfOthers(const std::vector<ExpertTask>& tasks, size_t rank) {
  double ff = 0;
  double fb = 0;
  double bb = 0;
  double fs = 0;
  double bs = 0;
  for (const ExpertTask& task : tasks) {
    if (task.rank == rank) continue;
    ff += task.flops * task.flops;
    fb += task.flops * task.bytes;
    bb += task.bytes * task.bytes;
    fs += task.flops * task.seconds;
    bs += task.bytes * task.seconds;
  }
  const Rates flops_alone{.per_flop = ff > 0 ? fs / ff : 0};
  const Rates bytes_alone{.per_byte = bb > 0 ? bs / bb : 0};
  if (ff <= 0) return bytes_alone;
  constexpr double kInProportion = 1e-9;
  const double determinant = ff * bb - fb * fb;
  if (determinant <= kInProportion * ff * bb) return flops_alone;
  const Rates both{.per_flop = (fs * bb - bs * fb) / determinant,
                   .per_byte = (bs * ff - fs * fb) / determinant};
  if (both.per_flop < 0) return bytes_alone;
  return both.per_byte < 0 ? flops_alone : both;
}

}  // namespace

SlowestExperts FindSlowestExperts(const TracedStep& step, const std::vector<std::string>& roles) {
  SlowestExperts slowest;
  if (step.measured.tasks.empty()) return slowest;
  const std::vector<ExpertTask> tasks = ExpertTasksOf(step, roles);
  for (size_t rank = 0; rank < roles.size(); ++rank) {
    const Rates rates = RatesOfOthers(tasks, rank);
    double expected = 0;
    double seconds = 0;
    for (const ExpertTask& task : tasks) {
      if (task.rank != rank) continue;
      expected += rates.SecondsOf(task);
      seconds += task.seconds;
    }
    if (!(expected > 0)) continue;
    const double ratio = seconds / expected;
    if (ratio > slowest.ratio) slowest = {static_cast<int>(rank), ratio};
  }
  return slowest;
}

}  // namespace convene::drawing
