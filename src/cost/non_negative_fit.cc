#include "cost/non_negative_fit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/median.h"

namespace convene::cost {

namespace {

// Of taking units and weights from the turn before; both hardly change after the first few.
constexpr int kTurns = 12;
// No error is measured by less than this share of what was measured, so that nothing is divided by
// what is next to nothing.
constexpr double kLeastUnit = 0.02;
// Points beyond this many typical errors count in proportion to their error and no more with its
// square (Huber): points that others disturbed are far from all curves and must not bend them.
constexpr double kOutlier = 1.5;
// The typical error is never taken for less than this. Otherwise it is the standard deviation of a
// normal distribution with the errors' median.
constexpr double kLeastTypical = 0.05;
constexpr double kMedianByDeviation = 0.6745;

// Each row's error is measured in its unit and counts with its weight.
std::vector<double> FitWeighted(std::span<const Row> rows, std::span<const double> units,
                                std::span<const double> weights) {
  const size_t n = rows.front().columns.size();
  // Columns are scaled to length 1, so that one tolerance serves all.
  std::vector<double> scale(n, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    CHECK(rows[r].columns.size() == n && rows[r].sum > 0);
    for (size_t i = 0; i < n; ++i) scale[i] += std::pow(rows[r].columns[i] / units[r], 2);
  }
  for (double& each : scale) each = std::sqrt(each);
  // The normal equations: gram · x = target.
  std::vector<double> gram(n * n, 0);
  std::vector<double> target(n, 0);
  std::vector<double> scaled(n, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < n; ++i) {
      scaled[i] = scale[i] > 0 ? rows[r].columns[i] / units[r] / scale[i] : 0;
    }
    for (size_t i = 0; i < n; ++i) {
      target[i] += weights[r] * scaled[i] * rows[r].sum / units[r];
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
  std::vector<double> weights(rows.size(), 1);
  std::vector<double> units;
  for (const Row& row : rows) units.push_back(row.sum);
  std::vector<double> found;
  for (int turn = 0; turn < kTurns; ++turn) {
    found = FitWeighted(rows, units, weights);
    std::vector<double> errors;
    for (size_t r = 0; r < rows.size(); ++r) {
      double sum = 0;
      for (size_t i = 0; i < found.size(); ++i) sum += rows[r].columns[i] * found[i];
      units[r] = std::max(sum, kLeastUnit * rows[r].sum);
      errors.push_back(std::abs(rows[r].sum - sum) / units[r]);
    }
    const double most = kOutlier * std::max(kLeastTypical, Median(errors) / kMedianByDeviation);
    for (size_t r = 0; r < rows.size(); ++r) weights[r] = errors[r] > most ? most / errors[r] : 1;
  }
  return found;
}

}  // namespace convene::cost
