#include "drawing/slow_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/median.h"
#include "drawing/constant_amount.h"
#include "drawing/role_names.h"

namespace convene::drawing {
namespace {

constexpr double kSlow = 1.25;
constexpr double kSlowTogether = 1.5;  // of all tasks together
constexpr size_t kFewestTasks = 6;
constexpr int64_t kFewestHeldUp = 3;  // more than one or two that the system held up

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

// By the sum of |expected - seconds|, in which tasks count by how long they are and one that was
// held up counts little: least squares, each time with weights by what is left of the last one
// (Schlossmacher 1973). Tasks of next to nothing are mostly what it takes to begin one.
Rates RatesOf(const std::vector<DoneTask>& tasks) {
  constexpr int kRounds = 20;
  constexpr double kLeastLeft = 1e-3;  // of a task
  Rates rates = FitRates(tasks, [](const DoneTask& task) { return 1 / task.seconds; });
  for (int round = 0; round < kRounds; ++round) {
    const Rates last = rates;
    rates = FitRates(tasks, [&](const DoneTask& task) {
      const double left = std::abs(last.SecondsOf(task) - task.seconds);
      return 1 / std::max(left, kLeastLeft * task.seconds);
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

// Of a task what it took over what the others' tasks say of it, which is `expected`.
struct Ratio {
  double value = 0;
  double expected = 0;

  double seconds() const { return value * expected; }
};

struct Sums {
  double seconds = 0;
  double expected = 0;

  double ratio() const { return seconds / expected; }
};

// A rank beside those with the same role.
struct Compared {
  std::vector<Ratio> ratios = {};   // of its tasks, sorted
  std::map<int, Sums> others = {};  // by rank: by the same rates as `ratios`
};

Compared Compare(const TasksByKind& tasks, int rank) {
  Compared compared;
  for (const auto& [kind, all] : tasks) {
    std::vector<DoneTask> others;
    std::ranges::copy_if(all, std::back_inserter(others),
                         [&](const DoneTask& task) { return task.rank != rank; });
    if (others.empty()) continue;
    const Rates rates = RatesOf(others);
    for (const DoneTask& task : all) {
      const double expected = rates.SecondsOf(task);
      if (expected <= 0) continue;
      if (task.rank == rank) {
        compared.ratios.push_back({task.seconds / expected, expected});
      } else {
        Sums& sums = compared.others[task.rank];
        sums.seconds += task.seconds;
        sums.expected += expected;
      }
    }
  }
  std::ranges::sort(compared.ratios, {}, &Ratio::value);
  return compared;
}

// What so much of the work stays below, by the time that is expected of it.
double Quantile(const std::vector<Ratio>& ratios, double share) {
  double left = 0;
  for (const Ratio& one : ratios) left += share * one.expected;
  for (const Ratio& one : ratios) {
    left -= one.expected;
    if (left < 0) return one.value;
  }
  return ratios.back().value;
}

// What all tasks together took over what is expected of them, but for the one that was held up the
// longest.
double RatioTogether(const std::vector<Ratio>& ratios) {
  const auto lost = [](const Ratio& one) { return one.seconds() - one.expected; };
  const auto longest = std::ranges::max_element(ratios, {}, lost);
  Sums sums;
  for (auto one = ratios.begin(); one != ratios.end(); ++one) {
    if (one == longest) continue;
    sums.seconds += one->seconds();
    sums.expected += one->expected;
  }
  return sums.ratio();
}

// By how much a rank is slow; nothing where it is not.
std::optional<double> SlowBy(const Compared& compared) {
  const std::vector<Ratio>& ratios = compared.ratios;
  if (ratios.size() < kFewestTasks) return {};
  if (Quantile(ratios, 0.25) > kSlow) return Quantile(ratios, 0.5);
  // A limit on a rank's processor time lets some tasks through as they are, and stops others.
  if (std::ranges::count_if(ratios, [](const Ratio& one) { return one.value > kSlow; }) <
      kFewestHeldUp) {
    return {};
  }
  std::vector<double> of_others;
  for (const auto& [rank, sums] : compared.others) of_others.push_back(sums.ratio());
  const double together = RatioTogether(ratios);
  if (together <= kSlowTogether * std::max(1.0, Median(std::move(of_others)))) return {};
  return together;
}

// Behind the comma of a step's name stands how large it is.
std::string_view KindOf(const TracedStep& step) {
  return std::string_view(step.name).substr(0, step.name.find(','));
}

struct StepsOfKind {
  std::string_view kind;
  std::vector<const TracedStep*> steps = {};
};

}  // namespace

std::vector<SlowRank> FindSlowRanks(std::span<const TracedStep> steps) {
  std::vector<StepsOfKind> kinds;
  std::map<std::string_view, size_t> place_of;
  for (const TracedStep& step : steps) {
    const std::string_view kind = KindOf(step);
    const auto [found, is_new] = place_of.try_emplace(kind, kinds.size());
    if (is_new) kinds.push_back({.kind = kind});
    kinds[found->second].steps.push_back(&step);
  }
  std::vector<SlowRank> slow;
  for (const StepsOfKind& of_kind : kinds) {
    std::map<std::string, TasksByKind> by_role;
    std::map<int, std::string> role_of;  // by rank
    for (const TracedStep* step : of_kind.steps) {
      if (step->measured.tasks.empty()) continue;
      const std::vector<std::string> roles = RoleNames(step->schedule);
      AddTasks(*step, roles, by_role);
      for (size_t rank = 0; rank < roles.size(); ++rank) {
        role_of[static_cast<int>(rank)] = roles[rank];
      }
    }
    for (const auto& [rank, role] : role_of) {
      const std::optional<double> ratio = SlowBy(Compare(by_role[role], rank));
      if (!ratio) continue;
      slow.push_back(
          {.steps = std::string(of_kind.kind), .rank = rank, .role = role, .ratio = *ratio});
    }
  }
  return slow;
}

}  // namespace convene::drawing
