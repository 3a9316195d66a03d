// How activities that run at the same time share what they use: the rule, for one moment. When it
// is asked is simulate.cc.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "cost/prices.h"

namespace convene::simulate {

// Max-min fair: a resource gives each user the same per stream, and what a user cannot use, since
// something else holds it back more, goes to the others. Speeds are shares of an activity's demands
// per second.
class FairShares {
 public:
  explicit FairShares(const cost::Prices& prices);

  // The activity begins or ends to ask for its demands. Speeds are those of before until Solve.
  void Begin(int activity);
  void End(int activity);

  // Finds the speeds after whatever began and ended at this moment. Afterwards `changed` (cleared
  // first) has the activities whose speed may have changed, those that began among them. Of many
  // ranks that do the same at once, this is asked once and not for each: it looks at all that share
  // something, directly or through others.
  void Solve(std::vector<int>& changed);

  double speed(int activity) const { return speed_[activity]; }

 private:
  struct User {
    int32_t activity;
    int32_t demand;  // place in Prices::demands
  };
  struct State {
    std::vector<User> users;
    int streams = 0;
    double rate = 0;
    bool contended = false;  // its users could use more than there is
    bool marked = false;     // it is in affected_
    double level = 0;        // what a stream gets at most
  };

  // Of an activity by its contended resources: the least, of which one, and the least of the
  // others.
  struct Limits {
    double least = std::numeric_limits<double>::infinity();
    int32_t at = -1;
    double second = std::numeric_limits<double>::infinity();
    bool is_stale = false;
  };

  // Recounts what its users need after one came or went; true: their speeds may have changed.
  bool Refresh(int resource);
  void RefreshAffected(int resource);
  void Collect(std::vector<int>& activities);
  void SolveTogether(const std::vector<int>& activities);
  void SetLevel(int resource, double level);
  double Limit(int activity, int except) const;
  double Fill(int resource) const;
  void UseUp(const std::vector<int>& activities);

  const cost::Prices& prices_;
  std::vector<State> states_;           // by resource
  std::vector<double> speed_alone_;     // by activity
  std::vector<double> speed_;           // by activity
  std::vector<int32_t> place_;          // by demand: in State::users
  mutable std::vector<Limits> limits_;  // by activity; of those whose speeds are being found
  std::vector<char> seen_;              // by activity
  // Kept so that nothing is allocated while it runs:
  std::vector<int> affected_;          // resources whose users' speeds are to be found anew
  std::vector<int> begun_;             // activities, since speeds were found
  mutable std::vector<double> needs_;  // by user of one resource
  std::vector<double> left_;           // by resource
};

}  // namespace convene::simulate
