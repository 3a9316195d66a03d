// A straight line of seconds over a work's ideal seconds, fitted so that short and long work count
// alike. Not the least squares of cost/linear_fit.h, which the longest work decides.
#pragma once

#include <span>

namespace convene::cost {

struct RelativeLine {
  double alpha = 0;  // seconds, at least 0
  double beta = 0;   // seconds per ideal second, at least 0
  double r2 = 0;     // share of the variance of the seconds that the line explains

  double at(double ideal_seconds) const { return alpha + beta * ideal_seconds; }
  bool operator==(const RelativeLine&) const = default;
};

// Least squares of the relative errors: each point has the weight 1 / seconds^2. Where they would
// make alpha or beta negative, it is zero and the other is fitted alone. `ideal` and `seconds` have
// the same length, at least 1, and are above 0.
RelativeLine FitRelativeLine(std::span<const double> ideal, std::span<const double> seconds);

}  // namespace convene::cost
