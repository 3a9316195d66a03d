// A function through measured points, straight between them: fitted as one coefficient per point.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::cost {

// What it is below the first point and beyond the last one, its users say.
struct Curve {
  std::vector<double> at;     // increasing, above 0
  std::vector<double> value;  // as many, not negative

  bool operator==(const Curve&) const = default;
};

// What the points of a curve count at `x`: two of them at most, whose weights sum to 1. Below the
// first point that one alone; beyond the last one that one in proportion to x.
std::vector<double> WeightsAt(const std::vector<double>& at, double x);

// Of values that occur, some that are far enough from each other for a point of a curve, at most
// 12; the smallest and the largest among them. Values that are not above 0 do not count.
std::vector<double> PointsOfCurve(std::vector<double> values);

nlohmann::ordered_json ToJson(const Curve& curve);
// The member `key` of an object. Errors: no such curve, points that do not increase, numbers that
// are negative or not finite.
Result<Curve> CurveFromJson(const nlohmann::json& json, std::string_view key);

}  // namespace convene::cost
