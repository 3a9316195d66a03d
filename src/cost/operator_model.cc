#include "cost/operator_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace convene::cost {
namespace {

// What is written as decimal digits and read again must not fall out of the range by rounding.
bool IsInside(double value, const MeasuredRange& range) {
  constexpr double kRounding = 1e-9;
  return value >= range.min * (1 - kRounding) && value <= range.max * (1 + kRounding);
}

}  // namespace

OperatorPrediction OperatorModel::Predict(std::span<const double> features,
                                          double ideal_seconds) const {
  CHECK(features.size() == ranges.size(), "{}: {} features", spec.name, features.size());
  OperatorPrediction prediction;
  std::vector<int32_t> logs;
  const auto add = [&](double value, const MeasuredRange& range) {
    prediction.extrapolated |= !IsInside(value, range);
    logs.push_back(LogOf(value));
  };
  for (size_t i = 0; i < features.size(); ++i) add(features[i], ranges[i]);
  add(ideal_seconds, ideal_range);
  prediction.seconds = curve.SecondsAt(logs, ideal_seconds);
  prediction.low = prediction.seconds * low_factor;
  prediction.high = prediction.seconds * high_factor;
  return prediction;
}

const HeldOutErrors& OperatorModel::chosen() const {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const HeldOutErrors& e) { return e.kind == curve.kind; });
  CHECK(found != candidates.end());
  return *found;
}

std::string Describe(const OperatorModel& model) {
  const HeldOutErrors& chosen = model.chosen();
  std::string text =
      fmt::format("{}: {}, held out {:.1f} % median, {:.1f} % at the 95th percentile",
                  model.spec.name, NameOf(chosen.kind), 100 * chosen.median, 100 * chosen.p95);
  for (const HeldOutErrors& errors : model.candidates) {
    if (errors.kind == chosen.kind) continue;
    text += errors.not_fitted.empty()
                ? fmt::format("; {} {:.1f} %, {:.1f} %", NameOf(errors.kind), 100 * errors.median,
                              100 * errors.p95)
                : fmt::format("; {} not fitted, since {}", NameOf(errors.kind), errors.not_fitted);
  }
  return text + fmt::format("; R2 of the line {:.4f}; {}", model.curve.line.r2,
                            FormatCount(static_cast<uint64_t>(model.num_points), "point"));
}

}  // namespace convene::cost
