#include "simulate/fair_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace convene::simulate {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-12;  // of rounding, relative
// Where activities hold each other back through several resources, levels are found by turns. Two
// or three turns do, but for contrived cases.
constexpr int kMaxTurns = 64;

}  // namespace

FairShares::FairShares(const cost::Prices& prices)
    : prices_(prices), states_(prices.resources.size()), left_(prices.resources.size()) {
  const size_t num_activities = prices.fixed_seconds.size();
  speed_.resize(num_activities);
  limits_.resize(num_activities);
  seen_.resize(num_activities);
  place_.resize(prices.demands.size());
  speed_alone_.reserve(num_activities);
  for (size_t activity = 0; activity < num_activities; ++activity) {
    double speed = kUnlimited;
    for (const cost::Demand& demand : prices.demands_of(static_cast<int>(activity))) {
      speed = std::min(speed,
                       prices.resources[demand.resource].rate.at(demand.streams) / demand.amount);
    }
    speed_alone_.push_back(speed);
  }
}

bool FairShares::Refresh(int resource) {
  State& state = states_[resource];
  state.rate = prices_.resources[resource].rate.at(state.streams);
  double needed = 0;
  for (const User& user : state.users) {
    needed += prices_.demands[user.demand].amount * speed_alone_[user.activity];
  }
  const bool was_contended = state.contended;
  state.contended = needed > state.rate * (1 + kTolerance);
  state.level = kUnlimited;
  return was_contended || state.contended;
}

void FairShares::RefreshAffected(int resource) {
  if (!Refresh(resource) || std::exchange(states_[resource].marked, true)) return;
  affected_.push_back(resource);
}

void FairShares::Begin(int activity) {
  speed_[activity] = speed_alone_[activity];
  for (int32_t i = prices_.first_demand[activity]; i < prices_.first_demand[activity + 1]; ++i) {
    const cost::Demand& demand = prices_.demands[i];
    State& state = states_[demand.resource];
    place_[i] = static_cast<int32_t>(state.users.size());
    state.users.push_back({activity, i});
    state.streams += demand.streams;
    RefreshAffected(demand.resource);
  }
  begun_.push_back(activity);
}

void FairShares::End(int activity) {
  for (int32_t i = prices_.first_demand[activity]; i < prices_.first_demand[activity + 1]; ++i) {
    const cost::Demand& demand = prices_.demands[i];
    State& state = states_[demand.resource];
    const User last = state.users.back();
    state.users[place_[i]] = last;
    place_[last.demand] = place_[i];
    state.users.pop_back();
    state.streams -= demand.streams;
    RefreshAffected(demand.resource);
  }
}

void FairShares::Solve(std::vector<int>& changed) {
  changed.swap(begun_);
  begun_.clear();
  for (const int activity : changed) seen_[activity] = 1;
  Collect(changed);
  SolveTogether(changed);
  affected_.clear();
}

// Adds to `activities` the users of affected resources, to those the contended resources of their
// users, and so on.
void FairShares::Collect(std::vector<int>& activities) {
  for (size_t i = 0; i < affected_.size(); ++i) {
    for (const User& user : states_[affected_[i]].users) {
      if (seen_[user.activity]) continue;
      seen_[user.activity] = 1;
      activities.push_back(user.activity);
      for (const cost::Demand& demand : prices_.demands_of(user.activity)) {
        State& state = states_[demand.resource];
        if (!state.contended || state.marked) continue;
        state.marked = true;
        affected_.push_back(demand.resource);
      }
    }
  }
  for (const int resource : affected_) states_[resource].marked = false;
  for (const int activity : activities) seen_[activity] = 0;
}

void FairShares::SolveTogether(const std::vector<int>& activities) {
  std::erase_if(affected_, [&](int resource) { return !states_[resource].contended; });
  for (const int resource : affected_) states_[resource].level = kUnlimited;
  for (const int activity : activities) limits_[activity].is_stale = true;
  bool settled = affected_.empty();
  for (int turn = 0; !settled && turn < kMaxTurns; ++turn) {
    settled = true;
    for (const int resource : affected_) {
      const double level = Fill(resource);
      const double before = states_[resource].level;
      if (level != before) SetLevel(resource, level);
      if (level != before && !(std::abs(level - before) <= 1e-10 * level)) settled = false;
    }
    if (affected_.size() == 1) settled = true;
  }
  for (const int activity : activities) speed_[activity] = Limit(activity, -1);
  if (affected_.size() > 1) UseUp(activities);
}

// A collective of many ranks has hundreds of demands, and each of their resources asks for its
// limit: so the least two are kept, and looked for anew only where one of them may have grown.
void FairShares::SetLevel(int resource, double level) {
  State& state = states_[resource];
  const double before = std::exchange(state.level, level);
  for (const User& user : state.users) {
    Limits& limits = limits_[user.activity];
    if (limits.is_stale) continue;
    const cost::Demand& demand = prices_.demands[user.demand];
    const double limit = demand.streams * level / demand.amount;
    if (level > before) {
      limits.is_stale = demand.streams * before / demand.amount <= limits.second;
    } else if (resource == limits.at) {
      limits.least = std::min(limits.least, limit);
    } else if (limit < limits.least) {
      limits.second = std::exchange(limits.least, limit);
      limits.at = resource;
    } else {
      limits.second = std::min(limits.second, limit);
    }
  }
}

// How fast an activity may be by all its resources but one. Those that are not contended have no
// level.
double FairShares::Limit(int activity, int except) const {
  Limits& limits = limits_[activity];
  if (limits.is_stale) {
    limits = {};
    for (const cost::Demand& demand : prices_.demands_of(activity)) {
      const double limit = demand.streams * states_[demand.resource].level / demand.amount;
      if (demand.resource == limits.at) {
        limits.least = std::min(limits.least, limit);
      } else if (limit < limits.least) {
        limits.second = std::exchange(limits.least, limit);
        limits.at = demand.resource;
      } else {
        limits.second = std::min(limits.second, limit);
      }
    }
  }
  return std::min(speed_alone_[activity], limits.at == except ? limits.second : limits.least);
}

// The level at which the resource is used up, given what its users can use at most.
double FairShares::Fill(int resource) const {
  const State& state = states_[resource];
  needs_.clear();
  double needed = 0;
  for (const User& user : state.users) {
    needs_.push_back(prices_.demands[user.demand].amount * Limit(user.activity, resource));
    needed += needs_.back();
  }
  if (needed <= state.rate * (1 + kTolerance)) return kUnlimited;
  double left = state.rate;
  int streams = state.streams;
  for (;;) {
    const double level = left / streams;
    bool all_take_it = true;
    for (size_t i = 0; i < needs_.size(); ++i) {
      const int own = prices_.demands[state.users[i].demand].streams;
      if (needs_[i] > own * level) continue;
      left -= needs_[i];
      streams -= own;
      needs_[i] = kUnlimited;  // has what it needs
      all_take_it = false;
    }
    if (all_take_it || streams <= 0) return level;
  }
}

// Where turns ran out: nothing uses more than there is, and nothing is left that could be used.
void FairShares::UseUp(const std::vector<int>& activities) {
  for (const int resource : affected_) {
    left_[resource] = 0;
    for (const User& user : states_[resource].users) {
      left_[resource] += prices_.demands[user.demand].amount * speed_[user.activity];
    }
    left_[resource] = states_[resource].rate / left_[resource];  // to scale with, if below 1
  }
  for (const int activity : activities) {
    double scale = 1;
    for (const cost::Demand& demand : prices_.demands_of(activity)) {
      if (states_[demand.resource].contended) scale = std::min(scale, left_[demand.resource]);
    }
    speed_[activity] *= scale;
  }
  for (const int resource : affected_) {
    left_[resource] = states_[resource].rate;
    for (const User& user : states_[resource].users) {
      left_[resource] -= prices_.demands[user.demand].amount * speed_[user.activity];
    }
  }
  for (const int activity : activities) {
    double more = speed_alone_[activity] - speed_[activity];
    for (const cost::Demand& demand : prices_.demands_of(activity)) {
      if (!states_[demand.resource].contended) continue;
      more = std::min(more, left_[demand.resource] / demand.amount);
    }
    if (more <= kTolerance * speed_alone_[activity]) continue;
    speed_[activity] += more;
    for (const cost::Demand& demand : prices_.demands_of(activity)) {
      left_[demand.resource] -= more * demand.amount;
    }
  }
}

}  // namespace convene::simulate
