#include "cost/fit_operator_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/units.h"

namespace convene::cost {
namespace {

constexpr uint64_t kNumParts = 5;
constexpr size_t kLeaveOneOutBelow = 20;  // distinct features
// Another curve must have at most so much of the line's mean error, and be better by a tenth of a
// percent, which no measurement resolves.
constexpr double kWorthMore = 0.9;
constexpr double kWorthAtLeast = 1e-3;

Status CheckValue(double value, const std::string& what) {
  if (value >= kLeastValue && value <= kMostValue) return {};
  return Error{
      fmt::format("{} is {}; it must be from {} to {}", what, value, kLeastValue, kMostValue)};
}

Status CheckSamples(const OperatorModelSpec& spec, std::span<const OperatorSample> samples) {
  const size_t num_features = spec.feature_names.size();
  if (num_features < 1 || num_features > kMostFeatures) {
    return Error{
        fmt::format("it has {} features; from 1 to {} are supported", num_features, kMostFeatures)};
  }
  if (samples.size() > kMostSamples) {
    return Error{
        fmt::format("it has {} samples; at most {} are supported", samples.size(), kMostSamples)};
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    const OperatorSample& sample = samples[i];
    if (sample.features.size() != num_features) {
      return Error{fmt::format("sample {} has {} features; {} are named", i, sample.features.size(),
                               num_features)};
    }
    for (size_t f = 0; f < num_features; ++f) {
      const Status fits =
          CheckValue(sample.features[f], fmt::format("{} of sample {}", spec.feature_names[f], i));
      if (!fits) return fits;
    }
    for (const auto& [value, what] : {std::pair{sample.ideal_seconds, "the ideal time"},
                                      std::pair{sample.seconds, "the measured time"}}) {
      if (const Status fits = CheckValue(value, fmt::format("{} of sample {}", what, i)); !fits) {
        return fits;
      }
    }
  }
  return {};
}

// A sample with the part in which it is held out.
struct Placed {
  const OperatorSample* sample = nullptr;
  uint64_t digest = 0;  // of its features
  uint64_t part = 0;
};

struct Parts {
  std::vector<Placed> points;  // in an order that does not depend on that of the samples
  uint64_t num_parts = kNumParts;
  size_t num_distinct = 0;
};

Parts Divide(std::span<const OperatorSample> samples) {
  Parts parts;
  for (const OperatorSample& sample : samples) {
    parts.points.push_back({&sample, DigestOf(std::as_bytes(std::span(sample.features)))});
  }
  std::sort(parts.points.begin(), parts.points.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.digest, a.sample->features, a.sample->ideal_seconds, a.sample->seconds) <
           std::tie(b.digest, b.sample->features, b.sample->ideal_seconds, b.sample->seconds);
  });
  for (size_t i = 0; i < parts.points.size(); ++i) {
    parts.num_distinct += i == 0 || parts.points[i].digest != parts.points[i - 1].digest;
    parts.points[i].part = parts.num_distinct - 1;
  }
  if (parts.num_distinct < kLeaveOneOutBelow) {
    parts.num_parts = parts.num_distinct;
    return parts;
  }
  for (Placed& point : parts.points) point.part = point.digest % kNumParts;
  return parts;
}

std::vector<int32_t> LogsOf(const OperatorSample& sample) {
  std::vector<int32_t> logs;
  for (const double feature : sample.features) logs.push_back(LogOf(feature));
  logs.push_back(LogOf(sample.ideal_seconds));
  return logs;
}

// All points but those of a part; without a part all.
CurvePoints PointsWithout(const Parts& parts, std::optional<uint64_t> part) {
  CurvePoints points;
  for (const Placed& placed : parts.points) {
    if (placed.part == part) continue;
    const std::vector<int32_t> logs = LogsOf(*placed.sample);
    points.num_logs = static_cast<int>(logs.size());
    points.logs.insert(points.logs.end(), logs.begin(), logs.end());
    points.ideal_seconds.push_back(placed.sample->ideal_seconds);
    points.seconds.push_back(placed.sample->seconds);
  }
  return points;
}

// Of sorted values, the smallest that `share` of them do not exceed.
double Percentile(const std::vector<double>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

struct HeldOutFactors {
  HeldOutErrors errors;
  double low_factor = 1;
  double high_factor = 1;
};

HeldOutFactors Summarise(CurveKind kind, std::vector<double> factors) {
  HeldOutFactors held_out = {.errors = {.kind = kind}};
  std::vector<double> errors;
  for (const double factor : factors) {  // measured / predicted
    errors.push_back(std::abs(1 / factor - 1));
    held_out.errors.mean += errors.back() / static_cast<double>(factors.size());
  }
  std::sort(errors.begin(), errors.end());
  std::sort(factors.begin(), factors.end());
  held_out.errors.median = Percentile(errors, 0.5);
  held_out.errors.p95 = Percentile(errors, 0.95);
  held_out.low_factor = Percentile(factors, 0.05);
  held_out.high_factor = Percentile(factors, 0.95);
  return held_out;
}

// Not fitted where a curve through all points, which would be kept, has none of this kind.
HeldOutFactors HoldOut(CurveKind kind, bool higher_order, const Parts& parts) {
  if (const Status fits = CheckNumPoints(kind, parts.points.size()); !fits) {
    return {.errors = {.kind = kind, .not_fitted = fits.error().message}};
  }
  std::vector<double> factors;
  for (uint64_t part = 0; part < parts.num_parts; ++part) {
    const CurvePoints points = PointsWithout(parts, part);
    if (points.size() == parts.points.size() || points.size() == 0) continue;
    const Result<OperatorCurve> curve = FitCurve(kind, higher_order, points);
    if (!curve) return {.errors = {.kind = kind, .not_fitted = curve.error().message}};
    for (const Placed& placed : parts.points) {
      if (placed.part != part) continue;
      const OperatorSample& sample = *placed.sample;
      factors.push_back(sample.seconds / curve->SecondsAt(LogsOf(sample), sample.ideal_seconds));
    }
  }
  return Summarise(kind, std::move(factors));
}

bool IsWorthMore(const HeldOutErrors& errors, const HeldOutErrors& than) {
  if (than.kind != CurveKind::kLinear) return errors.mean < than.mean;
  return errors.mean < kWorthMore * than.mean && errors.mean < than.mean - kWorthAtLeast;
}

// Of those that could be fitted. The line always can.
HeldOutFactors& Best(std::span<HeldOutFactors> tried) {
  HeldOutFactors* best = nullptr;
  for (HeldOutFactors& one : tried) {
    if (!one.errors.not_fitted.empty()) continue;
    if (best == nullptr || IsWorthMore(one.errors, best->errors)) best = &one;
  }
  CHECK(best != nullptr);
  return *best;
}

double MedianOfLine(const RelativeLine& line, std::span<const OperatorSample> samples) {
  std::vector<double> errors;
  for (const OperatorSample& sample : samples) {
    errors.push_back(std::abs(line.at(sample.ideal_seconds) / sample.seconds - 1));
  }
  std::sort(errors.begin(), errors.end());
  return Percentile(errors, 0.5);
}

void AddRanges(std::span<const OperatorSample> samples, OperatorModel& model) {
  const auto include = [](double value, MeasuredRange& range) {
    range.min = std::min(range.min, value);
    range.max = std::max(range.max, value);
  };
  for (const double value : samples[0].features) model.ranges.push_back({value, value});
  model.ideal_range = {samples[0].ideal_seconds, samples[0].ideal_seconds};
  for (const OperatorSample& sample : samples) {
    for (size_t f = 0; f < model.ranges.size(); ++f) include(sample.features[f], model.ranges[f]);
    include(sample.ideal_seconds, model.ideal_range);
  }
}

}  // namespace

Result<OperatorModel> FitOperatorModel(OperatorModelSpec spec,
                                       std::span<const OperatorSample> samples) {
  if (const Status fits = CheckSamples(spec, samples); !fits) return fits.error().At(spec.name);
  const Parts parts = Divide(samples);
  if (parts.num_distinct < kLeastDistinctPoints) {
    return Error{
        fmt::format("{}: {} with different features; a model needs at least {}: measure "
                    "more sizes",
                    spec.name, FormatCount(parts.num_distinct, "point"), kLeastDistinctPoints)};
  }
  OperatorModel model = {.spec = std::move(spec)};
  model.num_points = static_cast<int>(samples.size());
  std::vector<HeldOutFactors> tried;
  for (const CurveKind kind : kCurveKinds) {
    tried.push_back(HoldOut(kind, model.spec.higher_order, parts));
  }
  const CurvePoints all = PointsWithout(parts, std::nullopt);
  HeldOutFactors* best = &Best(tried);
  Result<OperatorCurve> curve = FitCurve(best->errors.kind, model.spec.higher_order, all);
  while (!curve) {  // the next best one: what goes through the parts need not go through all
    best->errors = {.kind = best->errors.kind, .not_fitted = curve.error().message};
    best = &Best(tried);
    curve = FitCurve(best->errors.kind, model.spec.higher_order, all);
  }
  model.curve = *std::move(curve);
  model.low_factor = best->low_factor;
  model.high_factor = best->high_factor;
  for (const HeldOutFactors& one : tried) model.candidates.push_back(one.errors);
  model.linear_median = MedianOfLine(model.curve.line, samples);
  AddRanges(samples, model);
  return model;
}

}  // namespace convene::cost
