#include "plan/lane_lines.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/quote.h"

namespace convene::plan {
namespace {

using nlohmann::json;

constexpr int kMostLayers = 1 << 20;
constexpr double kMost = 1e18;  // of seconds and of rows

struct LineMember {
  const char* name;
  Line LaneLines::*line;
};
constexpr LineMember kLines[] = {{"attention", &LaneLines::attention},
                                 {"shared", &LaneLines::shared},
                                 {"dispatch", &LaneLines::dispatch},
                                 {"experts", &LaneLines::experts},
                                 {"combine", &LaneLines::combine}};
struct Scalar {
  const char* name;
  double LaneLines::*value;
};
constexpr Scalar kScalars[] = {{"attention_per_key", &LaneLines::attention_per_key},
                               {"counts", &LaneLines::counts},
                               {"most_rows", &LaneLines::most_rows}};

bool IsAmount(const json& value) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMost;
}

Result<Line> ReadLine(const char* name, const json& value) {
  const bool is_line =
      value.is_array() && value.size() == 2 && IsAmount(value[0]) && IsAmount(value[1]);
  if (!is_line) {
    return Error{
        fmt::format("lines: {} is not a list of two numbers from 0 on, the seconds of a "
                    "task and those of each row",
                    name)};
  }
  return Line{.once = value[0].get<double>(), .per_row = value[1].get<double>()};
}

Result<LaneLines> ReadLines(const json& object) {
  if (!object.is_object()) return Error{"lines: an entry is not an object"};
  LaneLines lines;
  size_t num_known = 0;
  for (const LineMember& member : kLines) {
    const auto found = object.find(member.name);
    if (found == object.end()) return Error{fmt::format("lines: {} is missing", member.name)};
    const Result<Line> line = ReadLine(member.name, *found);
    if (!line) return line.error();
    lines.*member.line = *line;
    ++num_known;
  }
  for (const Scalar& scalar : kScalars) {
    const auto found = object.find(scalar.name);
    if (found == object.end()) return Error{fmt::format("lines: {} is missing", scalar.name)};
    if (!IsAmount(*found)) {
      return Error{fmt::format("lines: {} is not a number from 0 on", scalar.name)};
    }
    lines.*scalar.value = found->get<double>();
    ++num_known;
  }
  const auto layers = object.find("layers");
  const bool is_count = layers != object.end() && layers->is_number_integer() &&
                        layers->get<int64_t>() >= 1 && layers->get<int64_t>() <= kMostLayers;
  if (!is_count) {
    return Error{fmt::format("lines: layers is not a whole number from 1 to {}", kMostLayers)};
  }
  lines.num_layers = layers->get<int>();
  if (object.size() == num_known + 1) return lines;
  return Error{
      "lines: an entry has members that are not known; there are attention, shared, dispatch, "
      "experts and combine (lists of two numbers), attention_per_key, counts and most_rows "
      "(numbers) "
      "and layers (a whole number)"};
}

}  // namespace

nlohmann::ordered_json ToJson(const std::vector<LaneLines>& lines) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LaneLines& each : lines) {
    nlohmann::ordered_json object = {{"layers", each.num_layers}};
    for (const Scalar& scalar : kScalars) object[scalar.name] = each.*scalar.value;
    for (const LineMember& member : kLines) {
      const Line& line = each.*member.line;
      object[member.name] = {line.once, line.per_row};
    }
    list.push_back(std::move(object));
  }
  return list;
}

Result<std::vector<LaneLines>> LaneLinesFromJson(const json& list) {
  if (!list.is_array() || list.empty() || list.size() > kMostLaneLines) {
    return Error{fmt::format("lines is not a list of 1 to {} objects", kMostLaneLines)};
  }
  std::vector<LaneLines> lines;
  for (const json& object : list) {
    Result<LaneLines> read = ReadLines(object);
    if (!read) return read.error();
    if (read->most_rows == 0 && list.size() > 1) {
      return Error{
          "lines: most_rows of 0 is of any number of rows, and so of lines alone: give each of "
          "several the size of steps that it is of"};
    }
    const bool increases = lines.empty() || read->most_rows > lines.back().most_rows;
    if (!increases) {
      return Error{
          fmt::format("lines: most_rows of {} comes after one of {}: sizes of steps must "
                      "increase",
                      read->most_rows, lines.back().most_rows)};
    }
    lines.push_back(*read);
  }
  return lines;
}

}  // namespace convene::plan
