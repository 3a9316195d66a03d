#include "drawing/slow_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>

#include "drawing/constant_amount.h"
#include "drawing/role_names.h"

namespace convene::drawing {
namespace {

constexpr double kSlow = 1.25;
constexpr size_t kFewestTasks = 6;

// What a task has to do, and what it took.
struct DoneTask {
  int rank = 0;
  schedule::TaskKind kind = schedule::TaskKind::kExperts;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
};

struct Rates {
  double per_flop = 0;
  double per_byte = 0;

  double SecondsOf(const DoneTask& task) const {
    return per_flop * task.flops + per_byte * task.bytes;
  }
};

// Least squares with weights; neither rate is below zero. Where FLOPs and bytes are always in
// proportion, FLOPs alone.
template <class WeightOf>
Rates FitRates(const std::vector<DoneTask>& tasks, const WeightOf& weight_of) {
  double ff = 0;
  double fb = 0;
  double bb = 0;
  double fs = 0;
  double bs = 0;
  for (const DoneTask& task : tasks) {
    const double weight = weight_of(task);
    ff += weight * task.flops * task.flops;
    fb += weight * task.flops * task.bytes;
    bb += weight * task.bytes * task.bytes;
    fs += weight * task.flops * task.seconds;
    bs += weight * task.bytes * task.seconds;
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

// By the sum of |expected / seconds - 1|, in which short and long tasks count alike and one that
// was held up counts little: least squares, each time with weights by what is left of the last one
// (Schlossmacher 1973).
Rates RatesOf(const std::vector<DoneTask>& tasks) {
  constexpr int kRounds = 20;
  constexpr double kLeastLeft = 1e-3;
  Rates rates =
      FitRates(tasks, [](const DoneTask& task) { return 1 / (task.seconds * task.seconds); });
  for (int round = 0; round < kRounds; ++round) {
    const Rates last = rates;
    rates = FitRates(tasks, [&](const DoneTask& task) {
      const double left = std::abs(last.SecondsOf(task) / task.seconds - 1);
      return 1 / (task.seconds * task.seconds * std::max(left, kLeastLeft));
    });
  }
  return rates;
}

// Of a role's ranks, by kind of task.
using TasksByKind = std::map<schedule::TaskKind, std::vector<DoneTask>>;

void AddTasks(const TracedStep& step, const std::vector<std::string>& roles,
              std::map<std::string, TasksByKind>& by_role) {
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const schedule::Task& task = step.schedule.tasks[id];
    const std::string& role = roles[static_cast<size_t>(task.lane.rank)];
    if (role.empty() || IsCollective(task.kind)) continue;
    // The head is of one rank alone, as is what is done once in a step.
    if (task.layer < 0) continue;
    const DoneTask done{.rank = task.lane.rank,
                        .kind = task.kind,
                        .flops = ConstantValue(task.work.flops),
                        .bytes = ConstantValue(task.work.memory_bytes),
                        .seconds = step.measured.tasks[id].seconds()};
    if (done.flops + done.bytes > 0 && done.seconds > 0) by_role[role][task.kind].push_back(done);
  }
}

// Of a rank's tasks what they took over what the others' say of them.
std::vector<double> RatiosOf(const TasksByKind& tasks, int rank) {
  std::vector<double> ratios;
  for (const auto& [kind, all] : tasks) {
    std::vector<DoneTask> others;
    std::ranges::copy_if(all, std::back_inserter(others),
                         [&](const DoneTask& task) { return task.rank != rank; });
    if (others.empty()) continue;
    const Rates rates = RatesOf(others);
    for (const DoneTask& task : all) {
      const double expected = rates.SecondsOf(task);
      if (task.rank == rank && expected > 0) ratios.push_back(task.seconds / expected);
    }
  }
  std::ranges::sort(ratios);
  return ratios;
}

// Behind the comma of a step's name stands how large it is.
std::string KindOf(const TracedStep& step) { return step.name.substr(0, step.name.find(',')); }

}  // namespace

std::vector<SlowRank> FindSlowRanks(std::span<const TracedStep> steps) {
  std::vector<std::string> kinds;
  for (const TracedStep& step : steps) {
    if (std::ranges::find(kinds, KindOf(step)) == kinds.end()) kinds.push_back(KindOf(step));
  }
  std::vector<SlowRank> slow;
  for (const std::string& kind : kinds) {
    std::map<std::string, TasksByKind> by_role;
    std::map<int, std::string> role_of;  // by rank
    for (const TracedStep& step : steps) {
      if (KindOf(step) != kind || step.measured.tasks.empty()) continue;
      const std::vector<std::string> roles = RoleNames(step.schedule);
      AddTasks(step, roles, by_role);
      for (size_t rank = 0; rank < roles.size(); ++rank) {
        role_of[static_cast<int>(rank)] = roles[rank];
      }
    }
    for (const auto& [rank, role] : role_of) {
      const std::vector<double> ratios = RatiosOf(by_role[role], rank);
      if (ratios.size() < kFewestTasks || ratios[ratios.size() / 4] <= kSlow) continue;
      slow.push_back(
          {.steps = kind, .rank = rank, .role = role, .ratio = ratios[ratios.size() / 2]});
    }
  }
  return slow;
}

}  // namespace convene::drawing
