// What an operator costs on a machine: a curve through measured points, how far it was from points
// that were held out of fitting, and the range in which it was measured. It does not measure, and
// knows no models, layers or schedules.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/operator_curve.h"

namespace convene::cost {

inline constexpr int kMostFeatures = 12;

// One measured point of an operator.
struct OperatorSample {
  // As the model names them. From kLeastValue to kMostValue: their logarithms are used.
  std::vector<double> features;
  // What the limits of the hardware allow: the longer of FLOPs / peak and bytes / bandwidth; of
  // communication bytes / bandwidth. In the same range.
  double ideal_seconds = 0;
  double seconds = 0;  // measured; in the same range
};

struct OperatorPrediction {
  double seconds = 0;
  double low = 0;  // so far and no farther were 90 % of the points that were held out
  double high = 0;
  // A feature, or the ideal seconds, lies outside of what was measured. Then the factor over the
  // line is that of the nearest place in the range, and the line itself goes on.
  bool extrapolated = false;
};

struct OperatorModelSpec {
  std::string name;                             // "grouped_product bf16"
  std::string source = {};                      // where the points are from
  std::vector<std::string> feature_names = {};  // at most kMostFeatures
  // Trees see products and quotients of two features as well.
  bool higher_order = true;

  bool operator==(const OperatorModelSpec&) const = default;
};

// Relative errors |predicted / measured - 1| of one kind of curve at points held out of fitting.
struct HeldOutErrors {
  CurveKind kind = CurveKind::kLinear;
  std::string not_fitted = {};  // why it was not; then there are no errors
  double mean = 0;
  double median = 0;
  double p95 = 0;  // the 95th percentile

  bool operator==(const HeldOutErrors&) const = default;
};

struct MeasuredRange {
  double min = 0;
  double max = 0;

  bool operator==(const MeasuredRange&) const = default;
};

// A value. FitOperatorModel or OperatorModelFromJson makes one.
struct OperatorModel {
  OperatorModelSpec spec = {};
  OperatorCurve curve = {};                // fitted to all points
  std::vector<MeasuredRange> ranges = {};  // by feature
  MeasuredRange ideal_range = {};          // seconds
  double low_factor = 1;   // the 5th and the 95th percentile of measured / predicted
  double high_factor = 1;  // at held-out points
  int num_points = 0;
  double linear_median = 0;  // relative error of the line at the points it is fitted to
  std::vector<HeldOutErrors> candidates = {};  // by kind

  // `features` as spec.feature_names, all of them and the ideal seconds within kLeastValue and
  // kMostValue.
  OperatorPrediction Predict(std::span<const double> features, double ideal_seconds) const;
  const HeldOutErrors& chosen() const;
  bool operator==(const OperatorModel&) const = default;
};

// "grouped_product bf16: boosted, held out 3.1 % median, 14.0 % at the 95th percentile; the line
// alone 12.0 %, 40.1 %, R2 0.987; 1,200 points".
std::string Describe(const OperatorModel& model);

// One object. Trees are written as whole numbers, two for each node in preorder.
nlohmann::ordered_json ToJson(const OperatorModel& model);

// Errors: a key that is missing or of the wrong kind, numbers that are not finite or out of range,
// trees that end too early or compare what is not there, sizes beyond the limits of
// cost/regression_trees.h and cost/kriging.h. Unknown keys are ignored.
Result<OperatorModel> OperatorModelFromJson(const nlohmann::json& object);

}  // namespace convene::cost
