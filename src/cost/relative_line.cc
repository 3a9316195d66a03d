#include "cost/relative_line.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace convene::cost {
namespace {

double ShareExplained(const RelativeLine& line, std::span<const double> ideal,
                      std::span<const double> seconds) {
  double mean = 0;
  for (const double s : seconds) mean += s / static_cast<double>(seconds.size());
  double residuals = 0;
  double variance = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    residuals += std::pow(seconds[i] - line.at(ideal[i]), 2);
    variance += std::pow(seconds[i] - mean, 2);
  }
  return variance > 0 ? 1 - residuals / variance : 1;
}

}  // namespace

RelativeLine FitRelativeLine(std::span<const double> ideal, std::span<const double> seconds) {
  CHECK(!seconds.empty() && ideal.size() == seconds.size());
  // Divided by its seconds, a point asks alpha * u + beta * v to be 1.
  double uu = 0;
  double uv = 0;
  double vv = 0;
  double u_sum = 0;
  double v_sum = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const double u = 1 / seconds[i];
    const double v = ideal[i] / seconds[i];
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u_sum += u;
    v_sum += v;
  }
  const double determinant = uu * vv - uv * uv;
  RelativeLine line;
  bool both = determinant > 1e-12 * uu * vv;
  if (both) {
    line.alpha = (vv * u_sum - uv * v_sum) / determinant;
    line.beta = (uu * v_sum - uv * u_sum) / determinant;
    both = line.alpha >= 0 && line.beta >= 0;
  }
  if (!both) {
    // The better one of the two alone: what it leaves is n - sum^2 / square.
    const bool constant = line.beta < 0;
    line.alpha = constant ? u_sum / uu : 0;
    line.beta = constant ? 0 : v_sum / vv;
  }
  line.r2 = ShareExplained(line, ideal, seconds);
  return line;
}

}  // namespace convene::cost
