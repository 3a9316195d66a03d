#include "cost/link_seconds.h"

#include <algorithm>
#include <utility>

namespace convene::cost {
namespace {

// An exchange begins or ends to be under way.
struct Event {
  double time = 0;
  int activity = 0;
  bool begins = false;
};

std::vector<Event> EventsOf(const schedule::Schedule& schedule,
                            const schedule::ActivityGraph& graph,
                            const schedule::Timeline& timeline) {
  std::vector<Event> events;
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const auto tasks = graph.tasks_of(activity);
    if (!schedule::IsCollective(schedule.tasks[tasks.front()].kind)) continue;
    schedule::TaskTime time = timeline.tasks[tasks.front()];
    bool has_run = true;
    for (const schedule::TaskId id : tasks) {
      const schedule::TaskTime& own = timeline.tasks[id];
      has_run = has_run && own.end >= own.start;
      time.start = std::max(time.start, own.start);
      time.end = std::max(time.end, own.end);
    }
    if (!has_run || time.end <= time.start) continue;
    events.push_back({time.start, activity, true});
    events.push_back({time.end, activity, false});
  }
  std::ranges::sort(events, {}, &Event::time);
  return events;
}

}  // namespace

std::vector<double> LinkSeconds(const schedule::Schedule& schedule,
                                const schedule::ActivityGraph& graph,
                                const schedule::Timeline& timeline) {
  std::vector<double> seconds(static_cast<size_t>(graph.num_activities()), 0);
  // One that has the link from its beginning to its end has what each had of it meanwhile.
  double of_each = 0;  // what one that was always under way would have had until now
  double now = 0;
  int num_under_way = 0;
  for (const Event& event : EventsOf(schedule, graph, timeline)) {
    const double passed = event.time - std::exchange(now, event.time);
    if (num_under_way > 0) of_each += passed / num_under_way;
    num_under_way += event.begins ? 1 : -1;
    seconds[static_cast<size_t>(event.activity)] += event.begins ? -of_each : of_each;
  }
  return seconds;
}

}  // namespace convene::cost
