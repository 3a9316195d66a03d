#include "cost/linear_fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace convene::cost {
namespace {

// z such that a normal variable lies within +-z with probability `level`.
double NormalQuantile(double level) {
  double low = 0;
  double high = 40;
  while (high - low > 1e-12 * high) {
    const double middle = (low + high) / 2;
    (std::erf(middle / std::numbers::sqrt2) < level ? low : high) = middle;
  }
  return low;
}

}  // namespace

double StudentQuantile(double level, int degrees_of_freedom) {
  CHECK(level > 0 && level < 1 && degrees_of_freedom > 0);
  const double n = degrees_of_freedom;
  if (degrees_of_freedom == 1) return std::tan(std::numbers::pi / 2 * level);
  if (degrees_of_freedom == 2) return level * std::sqrt(2 / (1 - level * level));
  // Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5).
  const double z = NormalQuantile(level);
  const double z2 = z * z;
  return z * (1 + (z2 + 1) / (4 * n) + ((5 * z2 + 16) * z2 + 3) / (96 * n * n) +
              (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * n * n * n));
}

LinearFit FitLinear(std::span<const Point> points) {
  LinearFit fit = {.num_points = static_cast<int>(points.size())};
  if (points.empty()) return fit;
  const double n = static_cast<double>(points.size());
  double y_mean = 0;
  fit.x_min = fit.x_max = points.front().x;
  for (const Point& point : points) {
    fit.x_mean += point.x / n;
    y_mean += point.y / n;
    fit.x_min = std::min(fit.x_min, point.x);
    fit.x_max = std::max(fit.x_max, point.x);
  }
  double xy = 0;
  double yy = 0;
  double xy_origin = 0;
  double xx_origin = 0;
  for (const Point& point : points) {
    const double dx = point.x - fit.x_mean;
    const double dy = point.y - y_mean;
    fit.x_spread += dx * dx;
    xy += dx * dy;
    yy += dy * dy;
    xy_origin += point.x * point.y;
    xx_origin += point.x * point.x;
  }

  int num_parameters = 1;
  const bool same_x = fit.x_max - fit.x_min <= 1e-12 * std::abs(fit.x_max);
  if (!same_x) fit.alpha = y_mean - xy / fit.x_spread * fit.x_mean;
  if (same_x || fit.alpha < 0) {
    fit.alpha = 0;
    fit.beta = xx_origin > 0 ? std::max(0.0, xy_origin / xx_origin) : 0;
    if (xx_origin == 0) fit.alpha = y_mean;
  } else if (xy < 0) {
    fit.alpha = y_mean;
  } else {
    fit.beta = xy / fit.x_spread;
    num_parameters = 2;
  }

  double residuals = 0;
  for (const Point& point : points) residuals += std::pow(point.y - fit.at(point.x), 2);
  fit.r2 = yy > 0 ? 1 - residuals / yy : 1;
  fit.num_free = std::max(0, fit.num_points - num_parameters);
  if (fit.num_free > 0) fit.residual_sd = std::sqrt(residuals / fit.num_free);
  return fit;
}

Interval LinearFit::interval(double x, double level) const {
  const double y = at(x);
  if (num_free == 0 || residual_sd == 0) return {y, y};
  const double distance = x_spread > 0 ? (x - x_mean) * (x - x_mean) / x_spread : 0;
  const double half =
      StudentQuantile(level, num_free) * residual_sd * std::sqrt(1 + 1.0 / num_points + distance);
  return {y - half, y + half};
}

}  // namespace convene::cost
