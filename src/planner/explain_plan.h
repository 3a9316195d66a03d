// Why a plan was chosen, in words that follow from figures: what each alternative takes more and
// where it would win, found by moving one parameter and asking again; and which figure of the
// machine would change the choice. It chooses nothing.
#pragma once

#include <string>
#include <vector>

#include "planner/plan_search.h"

namespace convene::planner {

struct Alternative {
  int candidate = -1;       // of the answer's candidates
  double slower = 0;        // 0.18: it takes 18 % more than the chosen plan
  std::string reason = {};  // "experts +12.3 ms (imbalance 1.62), ..."
  std::string would_win =
      {};  // "with batches of 64 and more"; or that it does at no value tried, and in what range
};

// A figure of the machine with which another plan would be the choice, of those that the search
// priced: with other figures it might have priced others.
struct Flip {
  std::string figure;  // "memory", "cores", "link"
  double factor = 0;   // of its rate beside the profile's; 0: at no power of two in the range
  double rate = 0;     // bytes or operations per second, where the profile knows it; 0: not
  int candidate = -1;  // that would be chosen then
  std::string words = {};
};

// How much longer than the best of those shown each plan takes, by batch.
struct RegretCurve {
  int candidate = -1;
  // By batch: how much longer it takes than the best of the plans that may be chosen, of those
  // shown and the best others. Below 0: it cannot run there.
  std::vector<double> regret = {};
};

struct Explanation {
  std::vector<Alternative> alternatives;  // the closest first
  std::vector<Flip> flips;
  std::vector<int> batches;
  std::vector<int> best;            // by batch: the candidate that regret is counted from; -1: none
  std::vector<RegretCurve> curves;  // of the chosen plan, then of alternatives that are allowed
  double seconds = 0;
};

// Besides the chosen one at most `most` candidates, of many ranks fewer: the best of each system
// that people know by name, then of each setup and layout.
Explanation ExplainPlan(PlanSearch& search, const PlanAnswer& answer, size_t most = 8);

// What another plan takes more than the chosen one, by groups of tasks, the largest difference
// first. Of experts with the imbalance, where whoever computes them longer has more of it.
std::string WhySlower(const PlanFigures& other, const PlanFigures& chosen);

}  // namespace convene::planner
