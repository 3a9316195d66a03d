// Seconds of an operator as a function of its features: a line over the ideal seconds, times a
// factor that trees or kriging give. It knows no errors and no ranges; that is
// cost/operator_model.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/kriging.h"
#include "cost/regression_trees.h"
#include "cost/relative_line.h"

namespace convene::cost {

enum class CurveKind {
  kLinear,        // alpha + beta * ideal seconds
  kForest,        // times the factor of a random forest
  kBoosted,       // times the factor of boosted trees
  kInterpolated,  // times the factor of kriging
};
inline constexpr CurveKind kCurveKinds[] = {CurveKind::kLinear, CurveKind::kForest,
                                            CurveKind::kBoosted, CurveKind::kInterpolated};
std::string_view NameOf(CurveKind kind);  // "linear", "forest", "boosted", "interpolated"

// A logarithm in thousandths: trees and kriging see features so, which keeps them the same on all
// machines. `value` is from kLeastValue to kMostValue.
int32_t LogOf(double value);
inline constexpr double kLeastValue = 1e-30;
inline constexpr double kMostValue = 1e30;

// What trees compare: each of `logs`, and with `higher_order` also the sum and the difference of
// each two, which are the logarithms of products and quotients: the second-order polynomial
// features of HAP (section III-B).
int NumTerms(int num_logs, bool higher_order);
std::vector<int32_t> TermsOf(std::span<const int32_t> logs, bool higher_order);

// What a curve has said, by the logarithms that it was asked for: a search asks for the same ones
// thousands of times, and kriging looks at up to a thousand points for each. A copy begins anew,
// and nothing of it is compared or stored. Not for several threads at once.
class SaidFactors {
 public:
  SaidFactors() = default;
  SaidFactors(const SaidFactors& /*other*/) {}
  SaidFactors& operator=(const SaidFactors& /*other*/) {
    by_logs_.clear();
    return *this;
  }
  bool operator==(const SaidFactors& /*other*/) const { return true; }

  // `find` says what is not known yet.
  template <typename Find>
  double Get(const std::vector<int32_t>& logs, const Find& find) {
    const auto known = by_logs_.find(logs);
    if (known != by_logs_.end()) return known->second;
    if (by_logs_.size() == kMost) by_logs_.clear();
    return by_logs_.emplace(logs, find()).first->second;
  }

 private:
  static constexpr size_t kMost = 1 << 16;
  std::map<std::vector<int32_t>, double> by_logs_;
};

struct OperatorCurve {
  static constexpr double kLeafUnit = 1e-4;  // of a leaf of trees, as a part of a logarithm

  CurveKind kind = CurveKind::kLinear;
  bool higher_order = true;
  RelativeLine line = {};
  // Of the points; what lies outside has the factor of the nearest place inside.
  std::vector<int32_t> least_logs = {};
  std::vector<int32_t> most_logs = {};
  double log_offset = 0;  // of the factor's logarithm, beside what trees or kriging say
  RegressionTrees trees = {};
  Kriging kriging = {};
  mutable SaidFactors said = {};  // of this curve; whoever changes it empties this

  // `logs`: of the features, and last of the ideal seconds. Above 0 and finite.
  double SecondsAt(std::span<const int32_t> logs, double ideal_seconds) const;
  bool operator==(const OperatorCurve&) const = default;
};

// Measured points as curves are fitted to them; all lists are of the same number of points.
struct CurvePoints {
  int num_logs = 0;                // features and the ideal seconds
  std::vector<int32_t> logs = {};  // (num_points, num_logs)
  std::vector<double> ideal_seconds = {};
  std::vector<double> seconds = {};

  size_t size() const { return seconds.size(); }
  std::span<const int32_t> logs_of(size_t point) const {
    return std::span(logs).subspan(point * num_logs, num_logs);
  }
};

// Whether a curve of this kind can go through so many points. Error: why not.
Status CheckNumPoints(CurveKind kind, size_t num_points);

// Errors, the reason why this kind of curve cannot be had: too few points or too many, no XGBoost.
Result<OperatorCurve> FitCurve(CurveKind kind, bool higher_order, const CurvePoints& points);

}  // namespace convene::cost
