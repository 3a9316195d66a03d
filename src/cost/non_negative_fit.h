// Least squares with coefficients that are not negative, as costs are.
#pragma once

#include <span>
#include <vector>

namespace convene::cost {

// A point: what each coefficient is multiplied with, and the sum that was measured (above 0).
struct Row {
  std::vector<double> columns;
  double sum = 0;
};

// The coefficients for which the sum of ((columns · coefficients - sum) / sum)² is least: errors
// count by what share of the measured value they are, and large ones less than by their square. A
// column that is 0 throughout has the
// coefficient 0. All rows have equally many columns.
std::vector<double> FitNonNegative(std::span<const Row> rows);

}  // namespace convene::cost
