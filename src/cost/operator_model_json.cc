#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "cost/json_reader.h"
#include "cost/operator_model.h"

namespace convene::cost {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kMostNumber = 1e30;
constexpr int64_t kMostLog = 100'000'000;  // in thousandths; of kMostValue: 69,078

std::optional<CurveKind> KindOf(std::string_view name) {
  for (const CurveKind kind : kCurveKinds) {
    if (NameOf(kind) == name) return kind;
  }
  return std::nullopt;
}

ordered_json ToJson(const OperatorCurve& curve) {
  ordered_json object = {{"kind", NameOf(curve.kind)},     {"alpha_seconds", curve.line.alpha},
                         {"beta", curve.line.beta},        {"r2", curve.line.r2},
                         {"log_offset", curve.log_offset}, {"least_logs", curve.least_logs},
                         {"most_logs", curve.most_logs}};
  if (curve.kind == CurveKind::kInterpolated) {
    object["scales"] = curve.kriging.scales;
    object["points"] = curve.kriging.points;
    object["weights"] = curve.kriging.weights;
  } else if (curve.kind != CurveKind::kLinear) {
    ordered_json& numbers = object["trees"] = ordered_json::array();
    for (const RegressionTrees::Node& node : curve.trees.nodes()) {
      numbers.push_back(node.term);
      numbers.push_back(node.value);
    }
  }
  return object;
}

Status ReadTrees(JsonReader& reader, int num_terms, OperatorCurve& curve) {
  std::vector<int32_t> numbers;
  reader.Wholes("trees", size_t{2} * kMostTreeNodes, -2'000'000'000, 2'000'000'000, numbers);
  if (numbers.size() % 2 != 0) reader.Refuse("trees", "a list of pairs of whole numbers");
  if (const Status read = reader.status(); !read) return read;
  std::vector<RegressionTrees::Node> nodes;
  for (size_t i = 0; i < numbers.size(); i += 2) nodes.push_back({numbers[i], numbers[i + 1]});
  Result<RegressionTrees> trees = RegressionTrees::FromNodes(std::move(nodes), num_terms);
  if (!trees) return trees.error();
  curve.trees = *std::move(trees);
  return {};
}

Status ReadKriging(JsonReader& reader, int num_features, OperatorCurve& curve) {
  Kriging& kriging = curve.kriging;
  reader.Numbers("scales", kMostFeatures, 0, kMostNumber, kriging.scales);
  reader.Wholes("points", size_t{kMostFeatures} * kMostKrigingPoints, -kMostLog, kMostLog,
                kriging.points);
  reader.Numbers("weights", kMostKrigingPoints, -kMostNumber, kMostNumber, kriging.weights);
  if (const Status read = reader.status(); !read) return read;
  return CheckKriging(kriging, num_features);
}

Result<OperatorCurve> CurveFromJson(const json& object, const OperatorModelSpec& spec) {
  JsonReader reader(object);
  OperatorCurve curve = {.higher_order = spec.higher_order};
  std::string kind_name;
  reader.Text("kind", kind_name);
  reader.Number("alpha_seconds", 0, kMostNumber, curve.line.alpha);
  reader.Number("beta", 0, kMostNumber, curve.line.beta);
  reader.Number("r2", -1e300, 1, curve.line.r2);
  reader.Number("log_offset", -kMostNumber, kMostNumber, curve.log_offset);
  reader.Wholes("least_logs", kMostFeatures + 1, -kMostLog, kMostLog, curve.least_logs);
  reader.Wholes("most_logs", kMostFeatures + 1, -kMostLog, kMostLog, curve.most_logs);
  if (const Status read = reader.status(); !read) return read.error();
  if (curve.line.alpha + curve.line.beta <= 0) return Error{"its line is zero everywhere"};

  const size_t num_logs = spec.feature_names.size() + 1;
  if (curve.least_logs.size() != num_logs || curve.most_logs.size() != num_logs) {
    return Error{
        fmt::format("\"least_logs\" and \"most_logs\" must be lists of {} numbers", num_logs)};
  }
  for (size_t i = 0; i < num_logs; ++i) {
    if (curve.least_logs[i] > curve.most_logs[i]) {
      return Error{"\"least_logs\" must not be above \"most_logs\""};
    }
  }
  const std::optional<CurveKind> kind = KindOf(kind_name);
  if (!kind) return Error{fmt::format("{} is no kind of curve", Quote(kind_name))};
  curve.kind = *kind;
  Status read;
  if (curve.kind == CurveKind::kInterpolated) {
    read = ReadKriging(reader, static_cast<int>(num_logs) - 1, curve);
  } else if (curve.kind != CurveKind::kLinear) {
    read = ReadTrees(reader, NumTerms(static_cast<int>(num_logs), curve.higher_order), curve);
  }
  if (!read) return read.error();
  return curve;
}

ordered_json ToJson(const HeldOutErrors& errors) {
  if (!errors.not_fitted.empty()) {
    return {{"kind", NameOf(errors.kind)}, {"not_fitted", errors.not_fitted}};
  }
  return {{"kind", NameOf(errors.kind)},
          {"mean", errors.mean},
          {"median", errors.median},
          {"p95", errors.p95}};
}

Result<HeldOutErrors> ErrorsFromJson(const json& object) {
  JsonReader reader(object);
  HeldOutErrors errors;
  std::string kind_name;
  reader.Text("kind", kind_name);
  if (object.is_object() && object.contains("not_fitted")) {
    reader.Text("not_fitted", errors.not_fitted);
  } else {
    reader.Number("mean", 0, kMostNumber, errors.mean);
    reader.Number("median", 0, kMostNumber, errors.median);
    reader.Number("p95", 0, kMostNumber, errors.p95);
  }
  if (const Status read = reader.status(); !read) return read.error();
  const std::optional<CurveKind> kind = KindOf(kind_name);
  if (!kind) return Error{fmt::format("{} is no kind of curve", Quote(kind_name))};
  errors.kind = *kind;
  return errors;
}

Status ReadCandidates(JsonReader& reader, OperatorModel& model) {
  const json* candidates = reader.Array("held_out", std::size(kCurveKinds));
  if (candidates == nullptr) return reader.status();
  bool has_chosen = false;
  for (const json& item : *candidates) {
    Result<HeldOutErrors> errors = ErrorsFromJson(item);
    if (!errors) return errors.error().At("\"held_out\"");
    has_chosen |= errors->kind == model.curve.kind && errors->not_fitted.empty();
    model.candidates.push_back(*std::move(errors));
  }
  if (!has_chosen) return Error{"\"held_out\" has no errors of the kind of its curve"};
  return {};
}

Status ReadRanges(JsonReader& reader, OperatorModel& model) {
  std::vector<double> least;
  std::vector<double> most;
  reader.Numbers("least", kMostFeatures + 1, kLeastValue, kMostValue, least);
  reader.Numbers("most", kMostFeatures + 1, kLeastValue, kMostValue, most);
  if (const Status read = reader.status(); !read) return read;
  const size_t num_features = model.spec.feature_names.size();
  if (least.size() != num_features + 1 || most.size() != num_features + 1) {
    return Error{
        fmt::format("\"least\" and \"most\" must be lists of {} numbers", num_features + 1)};
  }
  for (size_t i = 0; i <= num_features; ++i) {
    if (least[i] > most[i]) return Error{"\"least\" has a number above that of \"most\""};
  }
  for (size_t i = 0; i < num_features; ++i) model.ranges.push_back({least[i], most[i]});
  model.ideal_range = {least.back(), most.back()};
  return {};
}

}  // namespace

ordered_json ToJson(const OperatorModel& model) {
  ordered_json least = ordered_json::array();
  ordered_json most = ordered_json::array();
  for (const MeasuredRange& range : model.ranges) {
    least.push_back(range.min);
    most.push_back(range.max);
  }
  least.push_back(model.ideal_range.min);
  most.push_back(model.ideal_range.max);
  ordered_json candidates = ordered_json::array();
  for (const HeldOutErrors& errors : model.candidates) candidates.push_back(ToJson(errors));
  return {{"name", model.spec.name},
          {"source", model.spec.source},
          {"features", model.spec.feature_names},
          {"higher_order", model.spec.higher_order},
          {"num_points", model.num_points},
          {"least", std::move(least)},
          {"most", std::move(most)},
          {"low_factor", model.low_factor},
          {"high_factor", model.high_factor},
          {"linear_median", model.linear_median},
          {"held_out", std::move(candidates)},
          {"curve", ToJson(model.curve)}};
}

Result<OperatorModel> OperatorModelFromJson(const json& object) {
  JsonReader reader(object);
  OperatorModel model;
  reader.Text("name", model.spec.name);
  reader.Text("source", model.spec.source);
  reader.Texts("features", kMostFeatures, model.spec.feature_names);
  reader.Flag("higher_order", model.spec.higher_order);
  reader.Whole("num_points", 1, 1 << 20, model.num_points);
  reader.Number("low_factor", 0, kMostNumber, model.low_factor);
  reader.Number("high_factor", model.low_factor, kMostNumber, model.high_factor);
  reader.Number("linear_median", 0, kMostNumber, model.linear_median);
  if (const Status read = reader.status(); !read) return read.error();
  if (model.spec.feature_names.empty()) return Error{"\"features\" must name at least one"};
  if (const Status read = ReadRanges(reader, model); !read) return read.error();
  const auto curve = object.find("curve");
  if (curve == object.end()) return Error{"\"curve\" is missing"};
  Result<OperatorCurve> read_curve = CurveFromJson(*curve, model.spec);
  if (!read_curve) return read_curve.error().At("\"curve\"");
  model.curve = *std::move(read_curve);
  if (const Status read = ReadCandidates(reader, model); !read) return read.error();
  return model;
}

}  // namespace convene::cost
