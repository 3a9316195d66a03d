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

// The coefficients for which errors are least that are measured by what is fitted: the sum of
// ((sum - columns · coefficients) / (columns · coefficients))², found by taking the divisor from
// the turn before (iteratively reweighted least squares). So times that scatter widely are fitted
// by their mean; errors measured by what was measured would be least near the shortest ones, and a
// step that is a sum of such times would be predicted too short. Rows that are further off than
// most count less than by the square of their error. A column that is 0 throughout has the
// coefficient 0. All rows have equally many columns.
std::vector<double> FitNonNegative(std::span<const Row> rows);

}  // namespace convene::cost
