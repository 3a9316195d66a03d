#include "cost/non_negative_fit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace convene::cost {

namespace {

// With weights by row, whose errors count so much.
std::vector<double> FitWeighted(std::span<const Row> rows, std::span<const double> weights) {
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
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    for (size_t i = 0; i < n; ++i) {
      scaled[i] = scale[i] > 0 ? row.columns[i] / row.sum / scale[i] : 0;
    }
    for (size_t i = 0; i < n; ++i) {
      target[i] += weights[r] * scaled[i];
      for (size_t j = 0; j < n; ++j) gram[i * n + j] += weights[r] * scaled[i] * scaled[j];
    }
  }
  // Coordinate by coordinate, which ends at the one minimum since the problem is convex.
  constexpr int kMostTurns = 3'000;
  constexpr double kSmallStep = 1e-8;
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

}  // namespace

std::vector<double> FitNonNegative(std::span<const Row> rows) {
  if (rows.empty()) return {};
  // Points that others disturbed are far from all curves. Those beyond this error count in
  // proportion to it and no more with its square (Huber), so that they do not bend the curve.
  constexpr double kOutlier = 0.1;
  constexpr int kTurns = 5;
  std::vector<double> weights(rows.size(), 1);
  std::vector<double> found;
  for (int turn = 0; turn < kTurns; ++turn) {
    found = FitWeighted(rows, weights);
    for (size_t r = 0; r < rows.size(); ++r) {
      double sum = 0;
      for (size_t i = 0; i < found.size(); ++i) sum += rows[r].columns[i] * found[i];
      // As far off by half as by twice.
      const double error = sum > 0 ? std::abs(std::log(sum / rows[r].sum)) : 1;
      weights[r] = error > kOutlier ? kOutlier / error : 1;
    }
  }
  return found;
}

}  // namespace convene::cost
