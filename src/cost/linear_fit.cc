#include "cost/linear_fit.h"

#include <algorithm>
#include <cmath>

namespace convene::cost {

LinearFit FitLinear(std::span<const Point> points) {
  LinearFit fit = {.num_points = static_cast<int>(points.size())};
  if (points.empty()) return fit;
  const double n = static_cast<double>(points.size());
  double x_mean = 0;
  double y_mean = 0;
  double x_min = points.front().x;
  fit.x_max = x_min;
  for (const Point& point : points) {
    x_mean += point.x / n;
    y_mean += point.y / n;
    x_min = std::min(x_min, point.x);
    fit.x_max = std::max(fit.x_max, point.x);
  }
  double xx = 0;
  double xy = 0;
  double yy = 0;
  double xy_origin = 0;
  double xx_origin = 0;
  for (const Point& point : points) {
    const double dx = point.x - x_mean;
    const double dy = point.y - y_mean;
    xx += dx * dx;
    xy += dx * dy;
    yy += dy * dy;
    xy_origin += point.x * point.y;
    xx_origin += point.x * point.x;
  }

  const bool same_x = fit.x_max - x_min <= 1e-12 * std::abs(fit.x_max);
  if (!same_x) fit.alpha = y_mean - xy / xx * x_mean;
  if (same_x || fit.alpha < 0) {
    fit.alpha = 0;
    fit.beta = xx_origin > 0 ? std::max(0.0, xy_origin / xx_origin) : 0;
    if (xx_origin == 0) fit.alpha = y_mean;
  } else if (xy < 0) {
    fit.alpha = y_mean;
  } else {
    fit.beta = xy / xx;
  }

  double residuals = 0;
  for (const Point& point : points) residuals += std::pow(point.y - fit.at(point.x), 2);
  fit.r2 = yy > 0 ? 1 - residuals / yy : 1;
  return fit;
}

}  // namespace convene::cost
