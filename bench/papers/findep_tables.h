// Tables 3 to 7 of FinDEP (Pan et al., 2025) as simulation has them beside what the paper
// publishes, under given assumptions (findep_case.h). It prints nothing.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bench/papers/findep_case.h"

namespace convene::papers {

// Published and predicted figures of a table.
struct Scored {
  std::vector<double> published;
  std::vector<double> predicted;
  std::vector<double> errors;

  // "published / predicted"
  std::string Add(double is, double says);
  double error() const;            // of the gains, in the median
  double error_of_values() const;  // of predicted / published - 1, in the median
  double correlation() const;
  // "86 %; rank correlation: 0.95; 8 values"
  std::string Words() const;
};

struct TableReport {
  std::string text;  // Markdown, with the scores
  Scored gains;
  Scored throughputs;  // of Table 7: times
};

// What the solver was asked: how long it took, how far from brute force it was, and how much better
// in simulation another of its proposals was than its first one.
class SolverReport {
 public:
  std::vector<planner::DisaggregatedChoice> Solve(const planner::DisaggregatedQuestion& question);
  void Compare(double first, double best) { regrets_.push_back(best / first - 1); }
  std::string Words() const;

 private:
  double longest_ms_ = 0;
  double worst_gap_ = 0;
  std::vector<double> regrets_;
};

// Throughput as m_a (3) or r1 (4) rises.
TableReport RisingTable(int number, const Assumptions& assumptions);
// FinDEP and PPPipe by length of sequences. With `solver`: what it was asked is added there.
TableReport TableFive(const Assumptions& assumptions, SolverReport* solver);
// FinDEP and a PPPipe that is held as it is best at 2,048.
TableReport TableSix(const Assumptions& assumptions);
// Communication that is not overlapped.
TableReport TableSeven(const Assumptions& assumptions);

}  // namespace convene::papers
