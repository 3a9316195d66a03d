#include "cost/non_negative_fit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace convene::cost {

std::vector<double> FitNonNegative(std::span<const Row> rows) {
  if (rows.empty()) return {};
  const size_t n = rows.front().columns.size();
  // Columns are scaled to length 1, so that one tolerance serves all.
  std::vector<double> scale(n, 0);
  for (const Row& row : rows) {
    CHECK(row.columns.size() == n && row.sum > 0);
    for (size_t i = 0; i < n; ++i) scale[i] += std::pow(row.columns[i] / row.sum, 2);
  }
  for (double& each : scale) each = std::sqrt(each);
  // The normal equations: gram · x = target.
  std::vector<double> gram(n * n, 0);
  std::vector<double> target(n, 0);
  std::vector<double> scaled(n, 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i) {
      scaled[i] = scale[i] > 0 ? row.columns[i] / row.sum / scale[i] : 0;
    }
    for (size_t i = 0; i < n; ++i) {
      target[i] += scaled[i];
      for (size_t j = 0; j < n; ++j) gram[i * n + j] += scaled[i] * scaled[j];
    }
  }
  // Coordinate by coordinate, which ends at the one minimum since the problem is convex.
  constexpr int kMostTurns = 20'000;
  constexpr double kSmallStep = 1e-10;
  std::vector<double> x(n, 0);
  for (int turn = 0; turn < kMostTurns; ++turn) {
    double largest = 0;
    for (size_t i = 0; i < n; ++i) {
      if (!(gram[i * n + i] > 0)) continue;
      double gradient = target[i];
      for (size_t j = 0; j < n; ++j) gradient -= gram[i * n + j] * x[j];
      const double next = std::max(0.0, x[i] + gradient / gram[i * n + i]);
      largest = std::max(largest, std::abs(next - x[i]));
      x[i] = next;
    }
    if (largest < kSmallStep) break;
  }
  for (size_t i = 0; i < n; ++i) x[i] = scale[i] > 0 ? x[i] / scale[i] : 0;
  return x;
}

}  // namespace convene::cost
