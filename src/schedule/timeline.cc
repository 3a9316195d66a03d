#include "schedule/timeline.h"

#include <algorithm>
#include <map>

#include "schedule/activity_graph.h"

namespace convene::schedule {
namespace {

struct Interval {
  double start;
  double end;
};

// Sorted, and those that touch joined.
std::vector<Interval> Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  std::vector<Interval> joined;
  for (const Interval& interval : intervals) {
    if (joined.empty() || interval.start > joined.back().end) {
      joined.push_back(interval);
    } else {
      joined.back().end = std::max(joined.back().end, interval.end);
    }
  }
  return joined;
}

double Length(const std::vector<Interval>& intervals) {
  double length = 0;
  for (const Interval& interval : intervals) length += interval.end - interval.start;
  return length;
}

// Both are unions.
double CommonLength(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double length = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    length += std::max(0.0, std::min(a[i].end, b[j].end) - std::max(a[i].start, b[j].start));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return length;
}

// Per rank the times in which a task runs that `wanted` names.
template <typename Wanted>
std::vector<std::vector<Interval>> Busy(const Schedule& schedule, const Timeline& timeline,
                                        Wanted wanted) {
  CHECK(timeline.tasks.size() == schedule.tasks.size(), "{} times for {} tasks",
        timeline.tasks.size(), schedule.tasks.size());
  std::vector<std::vector<Interval>> busy(schedule.num_ranks);
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const TaskTime& time = timeline.tasks[id];
    if (time.end <= time.start || !wanted(schedule.tasks[id])) continue;
    busy[schedule.tasks[id].lane.rank].push_back({time.start, time.end});
  }
  for (std::vector<Interval>& intervals : busy) intervals = Union(std::move(intervals));
  return busy;
}

bool Computes(const Task& task) { return !IsCommunication(task.kind); }

// Per collective when its last task began.
std::map<int, double> LastStarts(const Schedule& schedule, const Timeline& timeline) {
  std::map<int, double> last;
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    double& of_collective = last[schedule.tasks[id].collective];
    of_collective = std::max(of_collective, timeline.tasks[id].start);
  }
  return last;
}

bool Ran(const TaskTime& time) { return time.end >= time.start; }

// Of `tasks` the one that ended last.
TaskId LastEnded(const Timeline& timeline, std::span<const TaskId> tasks) {
  TaskId last = -1;
  for (const TaskId id : tasks) {
    if (!Ran(timeline.tasks[id])) continue;
    if (last < 0 || timeline.tasks[id].end > timeline.tasks[last].end) last = id;
  }
  return last;
}

}  // namespace

double Timeline::seconds() const {
  double seconds = 0;
  for (const TaskTime& time : tasks) seconds = std::max(seconds, time.end);
  return seconds;
}

std::vector<double> IdleShares(const Schedule& schedule, const Timeline& timeline) {
  const double seconds = timeline.seconds();
  std::vector<double> shares;
  for (const auto& busy : Busy(schedule, timeline, Computes)) {
    shares.push_back(seconds > 0 ? 1 - Length(busy) / seconds : 0);
  }
  return shares;
}

std::vector<double> OverlapShares(const Schedule& schedule, const Timeline& timeline) {
  const auto computing = Busy(schedule, timeline, Computes);
  const auto communicating =
      Busy(schedule, timeline, [](const Task& task) { return IsCommunication(task.kind); });
  std::vector<double> shares;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    const double seconds = Length(communicating[rank]);
    shares.push_back(seconds > 0 ? CommonLength(computing[rank], communicating[rank]) / seconds
                                 : 0);
  }
  return shares;
}

std::vector<TaskTime> WaitingTimes(const Schedule& schedule, const Timeline& timeline) {
  CHECK(timeline.tasks.size() == schedule.tasks.size());
  const std::map<int, double> last_starts = LastStarts(schedule, timeline);
  std::vector<TaskTime> waiting(schedule.tasks.size());
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const int collective = schedule.tasks[id].collective;
    const TaskTime& time = timeline.tasks[id];
    if (collective < 0 || !Ran(time)) continue;
    waiting[id] = {time.start, std::clamp(last_starts.at(collective), time.start, time.end)};
  }
  return waiting;
}

std::vector<double> WaitingShares(const Schedule& schedule, const Timeline& timeline) {
  const auto everything = [](const Task&) { return true; };
  const auto waiting = Busy(schedule, {WaitingTimes(schedule, timeline)}, everything);
  const auto computing = Busy(schedule, timeline, Computes);
  const double seconds = timeline.seconds();
  std::vector<double> shares;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    const double waited = Length(waiting[rank]) - CommonLength(waiting[rank], computing[rank]);
    shares.push_back(seconds > 0 ? waited / seconds : 0);
  }
  return shares;
}

std::vector<std::array<double, kNumTaskKinds>> SecondsByKind(const Schedule& schedule,
                                                             const Timeline& timeline) {
  CHECK(timeline.tasks.size() == schedule.tasks.size());
  std::vector<std::array<double, kNumTaskKinds>> seconds(schedule.num_ranks);
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    seconds[task.lane.rank][static_cast<size_t>(task.kind)] += timeline.tasks[id].seconds();
  }
  return seconds;
}

std::vector<TaskId> CriticalPath(const Schedule& schedule, const Timeline& timeline) {
  CHECK(timeline.tasks.size() == schedule.tasks.size());
  const ActivityGraph graph = BuildActivityGraph(schedule);
  const std::vector<TaskId> previous = PreviousOnLane(schedule);
  std::vector<TaskId> path;
  std::vector<TaskId> candidates = graph.tasks;
  for (;;) {
    TaskId id = LastEnded(timeline, candidates);
    // Measured times may contradict the schedule, but a path has no task twice.
    if (id < 0 || path.size() == schedule.tasks.size()) break;
    candidates.clear();
    TaskId last_before = -1;
    TaskId waited = id;  // of the collective the task whose rank came last
    for (const TaskId member : graph.tasks_of(graph.activity_of[id])) {
      candidates = schedule.tasks[member].after;
      if (previous[member] >= 0) candidates.push_back(previous[member]);
      const TaskId before = LastEnded(timeline, candidates);
      if (before < 0) continue;
      if (last_before < 0 || timeline.tasks[before].end > timeline.tasks[last_before].end) {
        last_before = before;
        waited = member;
      }
    }
    path.push_back(waited);
    candidates.clear();
    if (last_before >= 0) candidates.push_back(last_before);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace convene::schedule
