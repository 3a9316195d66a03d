// A smooth function through measured points (kriging, also known as regression by a Gaussian
// process), for tables too small for trees. What the points mean is up to the caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace convene::cost {

inline constexpr int kMostKrigingPoints = 1024;

// Value at x: the sum over points i of weight[i] * k(|x - point i|) with the Matern kernel
// k(d) = (1 + sqrt(3) d) exp(-sqrt(3) d), each coordinate divided by its scale before. Far from all
// points it is zero.
struct Kriging {
  std::vector<double> scales = {};   // by coordinate, above 0
  std::vector<int32_t> points = {};  // (num_points, num_coordinates)
  std::vector<double> weights = {};  // by point

  double at(std::span<const int32_t> x) const;
  bool operator==(const Kriging&) const = default;
};

// The scales and how far the function may pass from a point are those with the smallest mean error
// at points that are left out one at a time (Rasmussen and Williams, Gaussian Processes for Machine
// Learning, 2006, section 5.4.2), searched by doubling and halving from the standard deviations
// on. `points` (values.size(), num_coordinates), at least 1 and at most kMostKrigingPoints.
// Cubic in the points: 1,024 take about a second.
Kriging FitKriging(std::span<const int32_t> points, int num_coordinates,
                   std::span<const double> values);

// Errors: lengths that do not belong together, a scale that is not above 0, more points than
// kMostKrigingPoints, numbers that are not finite or beyond 1e12.
Status CheckKriging(const Kriging& kriging, int num_coordinates);

}  // namespace convene::cost
