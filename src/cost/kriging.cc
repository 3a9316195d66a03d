#include "cost/kriging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace convene::cost {
namespace {

constexpr int kMostSearchPoints = 192;  // on so many the scales are searched
constexpr int kMostRounds = 4;          // over all scales
constexpr double kMostOfKriging = 1e12;

double Matern(double squared_distance) {
  const double d = std::sqrt(3 * squared_distance);
  return (1 + d) * std::exp(-d);
}

double SquaredDistance(const int32_t* a, const int32_t* b, std::span<const double> scales) {
  double sum = 0;
  for (size_t c = 0; c < scales.size(); ++c) {
    const double difference = (static_cast<double>(a[c]) - static_cast<double>(b[c])) / scales[c];
    sum += difference * difference;
  }
  return sum;
}

// A symmetric matrix above zero (n, n) as the product of its lower triangle and that transposed;
// what is above the diagonal is not read.
class Cholesky {
 public:
  Cholesky(std::vector<double> matrix, size_t n) : lower_(std::move(matrix)), n_(n) {
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double sum = at(i, j);
        for (size_t k = 0; k < j; ++k) sum -= at(i, k) * at(j, k);
        // The noise on the diagonal keeps it above zero but for rounding.
        lower_[i * n_ + j] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / at(j, j);
      }
    }
  }

  // x with matrix * x = b.
  std::vector<double> Solve(std::span<const double> b) const {
    std::vector<double> x(b.begin(), b.end());
    for (size_t i = 0; i < n_; ++i) {
      for (size_t k = 0; k < i; ++k) x[i] -= at(i, k) * x[k];
      x[i] /= at(i, i);
    }
    for (size_t i = n_; i-- > 0;) {
      x[i] /= at(i, i);
      for (size_t k = 0; k < i; ++k) x[k] -= at(i, k) * x[i];
    }
    return x;
  }

  // The diagonal of the inverse.
  std::vector<double> InverseDiagonal() const {
    std::vector<double> diagonal(n_, 0);
    std::vector<double> column(n_);
    for (size_t j = 0; j < n_; ++j) {  // column j of the inverse of the lower triangle
      for (size_t i = j; i < n_; ++i) {
        double sum = i == j ? 1 : 0;
        for (size_t k = j; k < i; ++k) sum -= at(i, k) * column[k];
        column[i] = sum / at(i, i);
        diagonal[j] += column[i] * column[i];
      }
    }
    return diagonal;
  }

 private:
  double at(size_t i, size_t j) const { return lower_[i * n_ + j]; }

  std::vector<double> lower_;
  size_t n_;
};

// The points' kernel with `noise` on the diagonal.
Cholesky Factor(std::span<const int32_t> points, std::span<const double> scales, double noise) {
  const size_t num_coordinates = scales.size();
  const size_t n = points.size() / num_coordinates;
  std::vector<double> kernel(n * n, 0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) {
      kernel[i * n + j] = Matern(
          SquaredDistance(&points[i * num_coordinates], &points[j * num_coordinates], scales));
    }
    kernel[i * n + i] = 1 + noise;
  }
  return {std::move(kernel), n};
}

double LeftOutError(std::span<const int32_t> points, std::span<const double> values,
                    std::span<const double> scales, double noise) {
  const Cholesky factor = Factor(points, scales, noise);
  const std::vector<double> weights = factor.Solve(values);
  const std::vector<double> diagonal = factor.InverseDiagonal();
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += std::abs(weights[i] / diagonal[i]);
  return sum / static_cast<double>(values.size());
}

std::vector<double> StandardDeviations(std::span<const int32_t> points, size_t num_coordinates) {
  const size_t n = points.size() / num_coordinates;
  std::vector<double> deviations(num_coordinates);
  for (size_t c = 0; c < num_coordinates; ++c) {
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += points[i * num_coordinates + c];
    mean /= static_cast<double>(n);
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += std::pow(points[i * num_coordinates + c] - mean, 2);
    deviations[c] = std::max(1.0, std::sqrt(squares / static_cast<double>(n)));
  }
  return deviations;
}

// The last of what is varied is the noise, in steps of 4.
struct Search {
  std::vector<double> scales;
  double noise = 1e-2;
};

Search FindScales(std::span<const int32_t> points, size_t num_coordinates,
                  std::span<const double> values) {
  Search best = {.scales = StandardDeviations(points, num_coordinates)};
  double best_error = LeftOutError(points, values, best.scales, best.noise);
  for (int round = 0; round < kMostRounds; ++round) {
    bool improved = false;
    for (size_t c = 0; c <= num_coordinates; ++c) {
      for (const double factor : {0.5, 2.0}) {
        Search tried = best;
        double& varied = c < num_coordinates ? tried.scales[c] : tried.noise;
        varied *= c < num_coordinates ? factor : factor * factor;
        if (tried.noise < 1e-6 || tried.noise > 10) continue;
        const double error = LeftOutError(points, values, tried.scales, tried.noise);
        if (error >= 0.999 * best_error) continue;
        best = std::move(tried);
        best_error = error;
        improved = true;
      }
    }
    if (!improved) break;
  }
  return best;
}

}  // namespace

double Kriging::at(std::span<const int32_t> x) const {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i] * Matern(SquaredDistance(x.data(), &points[i * scales.size()], scales));
  }
  return sum;
}

Kriging FitKriging(std::span<const int32_t> points, int num_coordinates,
                   std::span<const double> values) {
  const auto width = static_cast<size_t>(num_coordinates);
  CHECK(!values.empty() && values.size() <= kMostKrigingPoints);
  CHECK(width > 0 && points.size() == values.size() * width);
  // Every n-th point, so that the search sees the whole range.
  const size_t stride = (values.size() + kMostSearchPoints - 1) / kMostSearchPoints;
  std::vector<int32_t> some_points;
  std::vector<double> some_values;
  for (size_t i = 0; i < values.size(); i += stride) {
    some_points.insert(some_points.end(), &points[i * width], &points[i * width] + width);
    some_values.push_back(values[i]);
  }
  Search found = FindScales(some_points, width, some_values);
  Kriging kriging;
  kriging.weights = Factor(points, found.scales, found.noise).Solve(values);
  kriging.scales = std::move(found.scales);
  kriging.points.assign(points.begin(), points.end());
  return kriging;
}

Status CheckKriging(const Kriging& kriging, int num_coordinates) {
  const auto width = static_cast<size_t>(num_coordinates);
  if (kriging.weights.size() > kMostKrigingPoints) {
    return Error{fmt::format("it interpolates {} points; at most {} are read",
                             kriging.weights.size(), kMostKrigingPoints)};
  }
  if (kriging.scales.size() != width || kriging.points.size() != kriging.weights.size() * width) {
    return Error{fmt::format("its {} scales, {} coordinates and {} weights do not belong together",
                             kriging.scales.size(), kriging.points.size(), kriging.weights.size())};
  }
  for (const double scale : kriging.scales) {
    if (!(scale >= 1e-6 && scale <= kMostOfKriging)) {
      return Error{"a scale of its coordinates must be a number from 1e-6 to 1e12"};
    }
  }
  for (const double weight : kriging.weights) {
    if (!(std::abs(weight) <= kMostOfKriging)) {
      return Error{"a weight of its points must be a number from -1e12 to 1e12"};
    }
  }
  return {};
}

}  // namespace convene::cost
