#include "drawing/step_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "drawing/constant_amount.h"
#include "drawing/role_names.h"

namespace convene::drawing {
namespace {

using schedule::kNumTaskKinds;
using schedule::Schedule;
using schedule::Task;

// By rank and kind; of collectives without and only what they wait for the last rank.
struct Seconds {
  std::vector<std::array<double, kNumTaskKinds>> working;
  std::vector<std::array<double, kNumTaskKinds>> waiting;
};

Seconds SecondsOf(const Schedule& schedule, const schedule::Timeline& timeline) {
  Seconds seconds;
  seconds.working = schedule::SecondsByKind(schedule, timeline);
  seconds.waiting.resize(seconds.working.size());
  const std::vector<schedule::TaskTime> waiting = schedule::WaitingTimes(schedule, timeline);
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    const auto kind = static_cast<size_t>(task.kind);
    seconds.waiting[task.lane.rank][kind] += waiting[id].seconds();
    seconds.working[task.lane.rank][kind] -= waiting[id].seconds();
  }
  return seconds;
}

struct Moments {
  double mean = 0;
  double sd = 0;
  double most = 0;
};

template <typename Numbers>
Moments MomentsOf(const Numbers& numbers) {
  Moments moments;
  if (numbers.empty()) return moments;
  const auto count = static_cast<double>(numbers.size());
  for (const double number : numbers) {
    moments.mean += number / count;
    moments.most = std::max(moments.most, number);
  }
  for (const double number : numbers) {
    moments.sd += (number - moments.mean) * (number - moments.mean) / count;
  }
  moments.sd = std::sqrt(moments.sd);
  return moments;
}

template <typename Loads>
Balance BalanceOf(const Loads& by_layer) {
  Balance balance;
  double sum_of_most = 0;
  double sum_of_means = 0;
  for (const std::vector<double>& loads : by_layer) {
    const Moments moments = MomentsOf(loads);
    if (!(moments.mean > 0)) continue;
    sum_of_most += moments.most;
    sum_of_means += moments.mean;
    balance.worst = std::max(balance.worst, moments.most / moments.mean);
  }
  if (sum_of_means > 0) balance.mean = sum_of_most / sum_of_means;
  return balance;
}

// By layer the work of each rank that has experts of it: others have attention alone, or other
// layers. Without layers that one rank alone has, which is compared with nobody.
std::vector<std::vector<double>> ExpertWorkByRank(const Schedule& schedule) {
  std::map<int, std::map<int, double>> flops;  // by layer, then rank
  for (const Task& task : schedule.tasks) {
    if (task.kind != schedule::TaskKind::kExperts) continue;
    flops[task.layer][task.lane.rank] += ConstantValue(task.work.flops);
  }
  std::vector<std::vector<double>> by_layer;
  for (const auto& [layer, by_rank] : flops) {
    if (by_rank.size() < 2) continue;
    std::vector<double>& ranks = by_layer.emplace_back();
    for (const auto& [rank, of_rank] : by_rank) ranks.push_back(of_rank);
  }
  return by_layer;
}

double SentBytes(const TracedStep& step, size_t id) {
  return step.sent_bytes.empty() ? 0 : static_cast<double>(step.sent_bytes[id]);
}

std::vector<SectionFigures> Sections(const TracedStep& step) {
  const Schedule& schedule = step.schedule;
  std::array<std::vector<bool>, kNumTaskKinds> has;  // by kind, then rank
  std::array<double, kNumTaskKinds> sent = {};
  std::array<double, kNumTaskKinds> scheduled = {};
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    const auto kind = static_cast<size_t>(task.kind);
    has[kind].resize(schedule.num_ranks);
    has[kind][task.lane.rank] = true;
    if (!IsCollective(task.kind)) continue;  // copies between tiers go to no other rank
    sent[kind] += SentBytes(step, id);
    scheduled[kind] += ConstantValue(task.work.link_bytes);
  }
  Seconds measured;
  Seconds predicted;
  if (!step.measured.tasks.empty()) measured = SecondsOf(schedule, step.measured);
  if (!step.predicted.tasks.empty()) predicted = SecondsOf(schedule, step.predicted);
  std::vector<SectionFigures> sections;
  for (size_t kind = 0; kind < kNumTaskKinds; ++kind) {
    if (has[kind].empty()) continue;
    const auto of_ranks = [&](const std::vector<std::array<double, kNumTaskKinds>>& seconds) {
      std::vector<double> chosen;
      for (size_t rank = 0; rank < seconds.size(); ++rank) {
        if (has[kind][rank]) chosen.push_back(seconds[rank][kind]);
      }
      return MomentsOf(chosen);
    };
    const Moments working = of_ranks(measured.working);
    sections.push_back({.kind = static_cast<schedule::TaskKind>(kind),
                        .seconds = working.mean,
                        .seconds_sd = working.sd,
                        .longest_seconds = working.most,
                        .waiting_seconds = of_ranks(measured.waiting).mean,
                        .predicted_seconds = of_ranks(predicted.working).mean,
                        .sent_bytes = sent[kind],
                        .scheduled_bytes = scheduled[kind]});
  }
  return sections;
}

}  // namespace

StepFigures FiguresOf(const TracedStep& step) {
  StepFigures figures = {.seconds = step.measured.seconds(),
                         .predicted_seconds = step.predicted.seconds(),
                         .sections = Sections(step)};
  figures.ranks.resize(step.schedule.num_ranks);
  const std::vector<std::string> roles = RoleNames(step.schedule);
  for (size_t rank = 0; rank < roles.size(); ++rank) figures.ranks[rank].role = roles[rank];
  const auto share = [&](const schedule::Timeline& timeline, auto shares_of,
                         double RankFigures::*member) {
    if (timeline.tasks.empty()) return;
    const std::vector<double> shares = shares_of(step.schedule, timeline);
    for (size_t rank = 0; rank < shares.size(); ++rank) figures.ranks[rank].*member = shares[rank];
  };
  share(step.measured, schedule::IdleShares, &RankFigures::idle_share);
  share(step.measured, schedule::WaitingShares, &RankFigures::waiting_share);
  share(step.measured, schedule::OverlapShares, &RankFigures::overlap_share);
  share(step.predicted, schedule::IdleShares, &RankFigures::predicted_idle_share);
  share(step.predicted, schedule::OverlapShares, &RankFigures::predicted_overlap_share);
  figures.rank_balance = BalanceOf(ExpertWorkByRank(step.schedule));
  std::vector<std::vector<double>> tokens;
  for (const std::vector<int64_t>& layer : step.expert_tokens) {
    tokens.emplace_back(layer.begin(), layer.end());
  }
  figures.expert_balance = BalanceOf(tokens);
  // Where nothing is exchanged there is nothing to count.
  figures.has_sent_bytes = !step.sent_bytes.empty() ||
                           std::none_of(step.schedule.tasks.begin(), step.schedule.tasks.end(),
                                        [](const Task& task) { return IsCollective(task.kind); });
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const Task& task = step.schedule.tasks[id];
    if (!IsCollective(task.kind)) continue;
    figures.ranks[task.lane.rank].sent_bytes += SentBytes(step, id);
    figures.ranks[task.lane.rank].scheduled_bytes += ConstantValue(task.work.link_bytes);
  }
  for (const RankFigures& rank : figures.ranks) {
    figures.sent_bytes += rank.sent_bytes;
    figures.scheduled_bytes += rank.scheduled_bytes;
  }
  return figures;
}

}  // namespace convene::drawing
