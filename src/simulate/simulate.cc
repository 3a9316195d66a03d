#include "simulate/simulate.h"

#include <algorithm>

#include "simulate/event_queue.h"
#include "simulate/fair_shares.h"

namespace convene::simulate {
namespace {

class Simulation {
 public:
  Simulation(const schedule::ActivityGraph& graph, const cost::Prices& prices)
      : graph_(graph),
        prices_(prices),
        shares_(prices),
        events_(graph.num_activities()),
        waits_(graph.num_before),
        working_(graph.num_activities()) {
    timeline_.tasks.resize(graph.activity_of.size());
  }

  schedule::Timeline Run() && {
    for (int activity = 0; activity < graph_.num_activities(); ++activity) {
      if (graph_.num_before[activity] == 0) Start(activity);
    }
    for (;;) {
      // A stack, not a recursion: a chain of tasks without work may be long.
      while (!ended_.empty()) {
        const int activity = ended_.back();
        ended_.pop_back();
        End(activity);
      }
      // Speeds are found once for all that happens at one moment.
      if (!events_.empty() && events_.first_time() <= now_ * kSameMoment) {
        Happen(events_.Pop().second);
        continue;
      }
      shares_.Solve(changed_);
      UpdateSpeeds();
      if (events_.empty()) break;
      now_ = std::max(now_, events_.first_time());
    }
    return std::move(timeline_);
  }

 private:
  struct Working {
    double speed = 0;  // 0: not yet
    double left = 1;   // of its demands, at `since`
    double since = 0;
  };

  // What alike ranks do at once differs by rounding.
  static constexpr double kSameMoment = 1 + 1e-12;

  // A working activity is done, or one begins to work after its fixed time.
  void Happen(int activity) {
    if (working_[activity].speed > 0) {
      shares_.End(activity);
      ended_.push_back(activity);
    } else {
      Work(activity);
    }
  }

  void Start(int activity) {
    for (const schedule::TaskId id : graph_.tasks_of(activity)) timeline_.tasks[id].start = now_;
    if (prices_.fixed_seconds[activity] > 0) {
      events_.Set(activity, now_ + prices_.fixed_seconds[activity]);
    } else {
      Work(activity);
    }
  }

  void Work(int activity) {
    if (prices_.demands_of(activity).empty()) {
      ended_.push_back(activity);
      return;
    }
    working_[activity].since = now_;
    shares_.Begin(activity);
  }

  void UpdateSpeeds() {
    for (const int activity : changed_) {
      Working& working = working_[activity];
      const double speed = shares_.speed(activity);
      if (speed == working.speed) continue;
      working.left = std::max(0.0, working.left - (now_ - working.since) * working.speed);
      working.since = now_;
      working.speed = speed;
      events_.Set(activity, now_ + working.left / speed);
    }
  }

  void End(int activity) {
    for (const schedule::TaskId id : graph_.tasks_of(activity)) timeline_.tasks[id].end = now_;
    for (const int next : graph_.next_of(activity)) {
      if (--waits_[next] == 0) Start(next);
    }
  }

  const schedule::ActivityGraph& graph_;
  const cost::Prices& prices_;
  FairShares shares_;
  EventQueue events_;
  std::vector<int32_t> waits_;    // by activity: for how many
  std::vector<Working> working_;  // by activity
  std::vector<int> changed_;
  std::vector<int> ended_;
  double now_ = 0;
  schedule::Timeline timeline_;
};

}  // namespace

schedule::Timeline Simulate(const schedule::Schedule& schedule,
                            const schedule::ActivityGraph& graph, const cost::Prices& prices) {
  CHECK(graph.activity_of.size() == schedule.tasks.size());
  CHECK(static_cast<int>(prices.fixed_seconds.size()) == graph.num_activities());
  return Simulation(graph, prices).Run();
}

schedule::Timeline Simulate(const schedule::Schedule& schedule, const cost::Rates& rates,
                            const cost::Sizes& sizes) {
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  return Simulate(schedule, graph, cost::PriceSchedule(schedule, graph, rates, sizes));
}

}  // namespace convene::simulate
