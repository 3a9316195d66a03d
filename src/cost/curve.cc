#include "cost/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "cost/json_reader.h"

namespace convene::cost {
namespace {

// Points of a curve are at least this factor apart, so that each has samples of its own.
constexpr double kLeastStep = 1.6;
constexpr size_t kMostPoints = 12;
constexpr double kLeastSize = 1e-9;
constexpr double kMostSize = 1e30;  // FLOPs and bytes, and how many of them for each byte

}  // namespace

std::vector<double> WeightsAt(const std::vector<double>& at, double x) {
  std::vector<double> weights(at.size(), 0);
  if (at.empty()) return weights;
  if (x <= at.front()) {
    weights.front() = 1;
  } else if (x >= at.back()) {
    weights.back() = x / at.back();
  } else {
    const auto above = std::upper_bound(at.begin(), at.end(), x);
    const auto i = static_cast<size_t>(above - at.begin());
    const double part = (x - at[i - 1]) / (at[i] - at[i - 1]);
    weights[i - 1] = 1 - part;
    weights[i] = part;
  }
  return weights;
}

std::vector<double> PointsOfCurve(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !(value > 0); });
  std::sort(values.begin(), values.end());
  double step = kLeastStep;
  for (;;) {
    std::vector<double> points;
    for (const double value : values) {
      if (points.empty() || value >= points.back() * step) points.push_back(value);
    }
    if (points.size() > 1 && values.back() > points.back()) points.back() = values.back();
    if (points.size() <= kMostPoints) return points;
    step *= 1.2;
  }
}

nlohmann::ordered_json ToJson(const Curve& curve) {
  return {{"at", curve.at}, {"value", curve.value}};
}

Result<Curve> CurveFromJson(const nlohmann::json& json, std::string_view key) {
  const auto found = json.is_object() ? json.find(std::string(key)) : json.end();
  const Error wrong{
      fmt::format("there is no \"{}\" with as many numbers \"at\", increasing from {} to {}, as "
                  "numbers \"value\" from 0 to {}",
                  key, kLeastSize, kMostSize, kMostCost)};
  if (found == json.end() || !found->is_object()) return wrong;
  Curve curve;
  for (const auto& [name, numbers, least, most] :
       {std::tuple{"at", &curve.at, kLeastSize, kMostSize},
        std::tuple{"value", &curve.value, 0.0, kMostCost}}) {
    const auto list = found->find(name);
    if (list == found->end() || !list->is_array() || list->size() > 1000) return wrong;
    for (const nlohmann::json& number : *list) {
      if (!number.is_number()) return wrong;
      const double value = number.get<double>();
      if (!(value >= least && value <= most)) return wrong;
      numbers->push_back(value);
    }
  }
  const bool increases = std::adjacent_find(curve.at.begin(), curve.at.end(),
                                            std::greater_equal<>()) == curve.at.end();
  if (curve.at.size() != curve.value.size() || !increases) return wrong;
  return curve;
}

}  // namespace convene::cost
