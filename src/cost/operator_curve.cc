#include "cost/operator_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/units.h"
#include "cost/xgboost/train_trees.h"

namespace convene::cost {
namespace {

constexpr size_t kLeastForTrees = 20;
constexpr size_t kLeastForKriging = 4;
constexpr double kMostLogFactor = 14;  // a factor of a million: what no measured operator has

// As many nodes as keep a profile of 40 operators below 3 MB.
constexpr TreeOptions kForestOptions = {};
constexpr TreeOptions kBoostedOptions = {
    .boosting = true, .num_trees = 64, .max_depth = 7, .learning_rate = 0.15};

// Features lie before the ideal seconds, which kriging leaves out: features determine them.
std::span<const int32_t> FeaturesOf(std::span<const int32_t> logs) {
  return logs.first(logs.size() - 1);
}

Status FitTrees(const CurvePoints& points, std::span<const double> targets, OperatorCurve& curve) {
  std::vector<int32_t> terms;
  for (size_t i = 0; i < points.size(); ++i) {
    const std::vector<int32_t> some = TermsOf(points.logs_of(i), curve.higher_order);
    terms.insert(terms.end(), some.begin(), some.end());
  }
  Result<RegressionTrees> trees = TrainTrees(
      terms, NumTerms(points.num_logs, curve.higher_order), targets, OperatorCurve::kLeafUnit,
      curve.kind == CurveKind::kBoosted ? kBoostedOptions : kForestOptions);
  if (!trees) return trees.error();
  curve.trees = *std::move(trees);
  return {};
}

Status FitInterpolation(const CurvePoints& points, std::span<const double> targets,
                        OperatorCurve& curve) {
  std::vector<int32_t> places;
  for (size_t i = 0; i < points.size(); ++i) {
    const std::span<const int32_t> features = FeaturesOf(points.logs_of(i));
    places.insert(places.end(), features.begin(), features.end());
  }
  curve.kriging = FitKriging(places, points.num_logs - 1, targets);
  return CheckKriging(curve.kriging, points.num_logs - 1);
}

}  // namespace

std::string_view NameOf(CurveKind kind) {
  switch (kind) {
    case CurveKind::kLinear:
      return "linear";
    case CurveKind::kForest:
      return "forest";
    case CurveKind::kBoosted:
      return "boosted";
    case CurveKind::kInterpolated:
      return "interpolated";
  }
  return "";
}

int32_t LogOf(double value) {
  CHECK(value >= kLeastValue && value <= kMostValue, "{}", value);
  return static_cast<int32_t>(std::lround(1000 * std::log(value)));
}

int NumTerms(int num_logs, bool higher_order) {
  return higher_order ? num_logs * num_logs : num_logs;
}

std::vector<int32_t> TermsOf(std::span<const int32_t> logs, bool higher_order) {
  std::vector<int32_t> terms(logs.begin(), logs.end());
  if (!higher_order) return terms;
  terms.reserve(logs.size() * logs.size());
  for (size_t i = 0; i < logs.size(); ++i) {
    for (size_t j = i + 1; j < logs.size(); ++j) {
      terms.push_back(logs[i] + logs[j]);
      terms.push_back(logs[i] - logs[j]);
    }
  }
  return terms;
}

double OperatorCurve::SecondsAt(std::span<const int32_t> logs, double ideal_seconds) const {
  const double seconds = line.at(ideal_seconds);
  if (kind == CurveKind::kLinear) return seconds;
  std::vector<int32_t> inside(logs.begin(), logs.end());
  for (size_t i = 0; i < inside.size(); ++i) {
    inside[i] = std::clamp(inside[i], least_logs[i], most_logs[i]);
  }
  return seconds * said.Get(inside, [&] {
    const double part =
        kind == CurveKind::kInterpolated
            ? kriging.at(FeaturesOf(inside))
            : kLeafUnit * static_cast<double>(trees.Sum(TermsOf(inside, higher_order)));
    return std::exp(std::clamp(log_offset + part, -kMostLogFactor, kMostLogFactor));
  });
}

Status CheckNumPoints(CurveKind kind, size_t num_points) {
  const bool is_tree = kind == CurveKind::kForest || kind == CurveKind::kBoosted;
  if (is_tree && num_points < kLeastForTrees) {
    return Error{fmt::format("there are {}, and trees need {}", FormatCount(num_points, "point"),
                             kLeastForTrees)};
  }
  if (kind == CurveKind::kInterpolated &&
      (num_points < kLeastForKriging || num_points > kMostKrigingPoints)) {
    return Error{fmt::format("there are {}, and interpolation takes from {} to {}",
                             FormatCount(num_points, "point"), kLeastForKriging,
                             FormatCount(kMostKrigingPoints))};
  }
  return {};
}

Result<OperatorCurve> FitCurve(CurveKind kind, bool higher_order, const CurvePoints& points) {
  CHECK(points.size() > 0);
  if (const Status fits = CheckNumPoints(kind, points.size()); !fits) return fits.error();
  OperatorCurve curve = {.kind = kind, .higher_order = higher_order};
  curve.line = FitRelativeLine(points.ideal_seconds, points.seconds);
  curve.least_logs.assign(points.num_logs, std::numeric_limits<int32_t>::max());
  curve.most_logs.assign(points.num_logs, std::numeric_limits<int32_t>::min());
  for (size_t i = 0; i < points.logs.size(); ++i) {
    int32_t& least = curve.least_logs[i % points.num_logs];
    int32_t& most = curve.most_logs[i % points.num_logs];
    least = std::min(least, points.logs[i]);
    most = std::max(most, points.logs[i]);
  }
  if (kind == CurveKind::kLinear) return curve;

  std::vector<double> targets(points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    targets[i] = std::log(points.seconds[i] / curve.line.at(points.ideal_seconds[i]));
    curve.log_offset += targets[i] / static_cast<double>(points.size());
  }
  for (double& target : targets) target -= curve.log_offset;
  const Status fitted = kind == CurveKind::kInterpolated ? FitInterpolation(points, targets, curve)
                                                         : FitTrees(points, targets, curve);
  if (!fitted) return fitted.error();
  return curve;
}

}  // namespace convene::cost
