// A straight line through measured points, with how well it fits. What the points mean is up to
// the caller.
#pragma once

#include <span>

namespace convene::cost {

struct Point {
  double x = 0;
  double y = 0;
};

// y = alpha + beta x, neither below zero: a cost does not shrink with the work.
struct LinearFit {
  double alpha = 0;
  double beta = 0;
  double r2 = 0;  // share of the variance that the line explains; 1 where there is none
  int num_points = 0;
  double x_max = 0;

  double at(double x) const { return alpha + beta * x; }
};

// Least squares. Where they would give a negative alpha or beta, it is zero and the other is
// fitted alone; where all x are the same, alpha is zero (and beta, if x is zero as well, so that
// alpha is the mean).
LinearFit FitLinear(std::span<const Point> points);

}  // namespace convene::cost
