// A straight line through measured points, with how well it fits and how far new points lie from
// it. What the points mean is up to the caller.
#pragma once

#include <span>

namespace convene::cost {

struct Point {
  double x = 0;
  double y = 0;
};

struct Interval {
  double low = 0;
  double high = 0;
};

// y = alpha + beta x, neither below zero: a cost does not shrink with the work.
struct LinearFit {
  double alpha = 0;
  double beta = 0;
  double r2 = 0;           // share of the variance that the line explains; 1 where there is none
  double residual_sd = 0;  // standard deviation of y around the line; 0 with too few points
  int num_points = 0;
  int num_free = 0;  // points less parameters
  double x_mean = 0;
  double x_spread = 0;  // sum of (x - x_mean)^2
  double x_min = 0;     // the range that was measured
  double x_max = 0;

  double at(double x) const { return alpha + beta * x; }

  // Where a new point at x lies with probability `level`, were residuals normal. With too few
  // points for a residual: at(x) alone.
  Interval interval(double x, double level = 0.9) const;
};

// Least squares. Where they would give a negative alpha or beta, it is zero and the other is
// fitted alone; where all x are the same, alpha is zero (and beta, if x is zero as well, so that
// alpha is the mean).
LinearFit FitLinear(std::span<const Point> points);

// t such that a Student-t variable lies within +-t with probability `level`.
double StudentQuantile(double level, int degrees_of_freedom);

}  // namespace convene::cost
