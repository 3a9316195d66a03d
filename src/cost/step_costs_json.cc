#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "cost/json_reader.h"
#include "cost/step_costs.h"

namespace convene::cost {

using schedule::TaskKind;

bool StepCosts::operator==(const StepCosts& other) const { return ToJson(*this) == ToJson(other); }

namespace {

constexpr double kMostStepOnce = 1e6;  // seconds
constexpr double kMostError = 1e9;     // a share of what was predicted

constexpr double kMostFactor = 1e6;
constexpr double kMostCachedBytes = 1e15;

bool IsFactor(const nlohmann::json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number()) return false;
  const double factor = object[key].get<double>();
  return factor > 0 && factor < kMostFactor;
}

nlohmann::ordered_json HeldOutToJson(const HeldOut& held_out) {
  return {{"points", held_out.num_points},
          {"mean_error", held_out.mean_error},
          {"median_error", held_out.median_error},
          {"p95_error", held_out.p95_error},
          {"bias", held_out.bias},
          {"low", held_out.low},
          {"high", held_out.high},
          {"r2", held_out.r2},
          {"line_r2", held_out.line_r2},
          {"line_median_error", held_out.line_median_error}};
}

// What is missing is 0, as in profiles of earlier versions: predictions then have no interval.
HeldOut HeldOutFromJson(const nlohmann::json& json) {
  const auto number = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    const double value = found != json.end() && found->is_number() ? found->get<double>() : 0;
    return std::clamp(value, -kMostError, kMostError);
  };
  return {.num_points = static_cast<int>(std::clamp(number("points"), 0.0, 1e9)),
          .mean_error = number("mean_error"),
          .median_error = number("median_error"),
          .p95_error = number("p95_error"),
          .bias = number("bias"),
          .low = number("low"),
          .high = number("high"),
          .r2 = number("r2"),
          .line_r2 = number("line_r2"),
          .line_median_error = number("line_median_error")};
}

std::optional<size_t> KindNamed(const std::string& name) {
  for (size_t kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    if (schedule::Name(static_cast<TaskKind>(kind)) == name) return kind;
  }
  return std::nullopt;
}

using Tasks = std::array<std::optional<TaskCost>, schedule::kNumTaskKinds>;

nlohmann::ordered_json TasksToJson(const Tasks& tasks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (size_t kind = 0; kind < tasks.size(); ++kind) {
    if (!tasks[kind]) continue;
    json[std::string(schedule::Name(static_cast<TaskKind>(kind)))] = ToJson(*tasks[kind]);
  }
  return json;
}

Status ReadTasks(const nlohmann::json& json, Tasks& tasks) {
  for (const auto& [name, task] : json.items()) {
    const std::optional<size_t> kind = KindNamed(name);
    if (!kind) return Error{fmt::format("\"{}\" is no kind of task", name)};
    const Result<TaskCost> cost = TaskCostFromJson(task);
    if (!cost) return Error{fmt::format("{}: {}", name, cost.error().message)};
    tasks[*kind] = *cost;
  }
  return {};
}

bool IsCostNumber(const nlohmann::json& json, const char* key, double most) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_number() && found->get<double>() >= 0 &&
         found->get<double>() <= most;
}

bool HasRate(const nlohmann::json& json, const char* key) {
  return IsCostNumber(json, key, kMostRate) && IsRateOrUnknown(json[key].get<double>());
}

Status ReadLearntFrom(const nlohmann::json& json, StepCosts* costs) {
  const auto found = json.find("learnt_from");
  if (found == json.end()) return {};
  const auto is_text = [](const nlohmann::json& each) { return each.is_string(); };
  if (!found->is_array() || found->size() > kMostLearntFrom ||
      !std::all_of(found->begin(), found->end(), is_text)) {
    return Error{
        fmt::format("costs of steps have \"learnt_from\" that is no list of at most {} texts",
                    kMostLearntFrom)};
  }
  costs->learnt_from = found->get<std::vector<std::string>>();
  return {};
}

}  // namespace

nlohmann::ordered_json ToJson(const StepCosts& costs) {
  nlohmann::ordered_json json = {
      {"ranks", costs.num_ranks},
      {"threads", costs.num_threads},
      {"weights", costs.weights},
      {"version", costs.version},
      {"date", costs.date},
      {"read_bytes_per_s", costs.reference.read_bytes_per_second},
      {"dot_operations_per_s", costs.reference.dot_operations_per_second},
      {"step_once_s", costs.step_once}};
  if (costs.copy_bytes_per_second > 0) json["copy_bytes_per_s"] = costs.copy_bytes_per_second;
  if (!costs.learnt_from.empty()) json["learnt_from"] = costs.learnt_from;
  for (const MachineState& state : costs.rank_states) {
    json["rank_states"].push_back({{"memory", state.memory}, {"compute", state.compute}});
  }
  json["exchange"] = {{"seconds_over_bytes", ToJson(costs.exchange.seconds)},
                      {"core_s_per_byte", costs.exchange.core_seconds_per_byte},
                      {"unevenness", costs.exchange.unevenness}};
  if (costs.exchange_held_out) {
    json["exchange"]["held_out"] = HeldOutToJson(*costs.exchange_held_out);
  }
  if (costs.overlapped_held_out) {
    json["overlapped_steps"] = HeldOutToJson(*costs.overlapped_held_out);
  }
  if (costs.interval_stretch != 1) json["interval_stretch"] = costs.interval_stretch;
  nlohmann::ordered_json exchanges = nlohmann::ordered_json::object();
  for (size_t kind = 0; kind < costs.held_out.size(); ++kind) {
    const auto name = static_cast<TaskKind>(kind);
    if (!IsCollective(name) || !costs.held_out[kind]) continue;
    exchanges[std::string(schedule::Name(name))] = HeldOutToJson(*costs.held_out[kind]);
  }
  json["exchange"]["kinds"] = std::move(exchanges);
  if (costs.int8_attention) {
    json["int8_attention"] = ToJson(*costs.int8_attention);
    if (costs.int8_attention_held_out) {
      json["int8_attention"]["held_out"] = HeldOutToJson(*costs.int8_attention_held_out);
    }
  }
  if (costs.load_beside) json["load_beside"] = ToJson(*costs.load_beside);
  if (costs.cached_weight_bytes > 0) {
    json["cached_weights"] = {{"most_bytes", costs.cached_weight_bytes},
                              {"tasks", TasksToJson(costs.cached_tasks)}};
  }
  json["tasks"] = TasksToJson(costs.tasks);
  for (size_t kind = 0; kind < costs.tasks.size(); ++kind) {
    if (!costs.tasks[kind] || !costs.held_out[kind]) continue;
    const std::string name(schedule::Name(static_cast<TaskKind>(kind)));
    json["tasks"][name]["held_out"] = HeldOutToJson(*costs.held_out[kind]);
  }
  return json;
}

Result<StepCosts> StepCostsFromJson(const nlohmann::json& json) {
  StepCosts costs;
  for (const char* key : {"ranks", "threads", "step_once_s"}) {
    if (IsCostNumber(json, key, std::numeric_limits<double>::max())) continue;
    return Error{fmt::format("costs of steps have no number \"{}\"", key)};
  }
  for (const char* key : {"read_bytes_per_s", "dot_operations_per_s"}) {
    if (HasRate(json, key)) continue;
    return Error{fmt::format("costs of steps have no \"{}\" that is 0 or from {} to {}", key,
                             kLeastRate, kMostRate)};
  }
  if (!json.contains("weights") || !json["weights"].is_string()) {
    return Error{"costs of steps have no name of a format \"weights\""};
  }
  for (const char* key : {"ranks", "threads"}) {
    const auto count = json[key].get<double>();
    if (count >= 1 && count <= 1e6) continue;
    return Error{
        fmt::format("costs of steps are of {} {}; there must be 1 to a million", count, key)};
  }
  if (json["step_once_s"].get<double>() > kMostStepOnce) {
    return Error{
        fmt::format("costs of steps have a \"step_once_s\" of {} besides tasks, which is "
                    "more than {:.0f} seconds",
                    json["step_once_s"].get<double>(), kMostStepOnce)};
  }
  costs.num_ranks = json["ranks"].get<int>();
  costs.num_threads = json["threads"].get<int>();
  costs.weights = json["weights"].get<std::string>();
  const auto version = json.find("version");
  if (version != json.end() && version->is_string()) {
    costs.version = version->get<std::string>();
  }
  if (const auto date = json.find("date"); date != json.end() && date->is_string()) {
    costs.date = date->get<std::string>();
  }
  if (Status read = ReadLearntFrom(json, &costs); !read) return read.error();
  costs.reference = {.read_bytes_per_second = json["read_bytes_per_s"].get<double>(),
                     .dot_operations_per_second = json["dot_operations_per_s"].get<double>()};
  costs.step_once = json["step_once_s"].get<double>();
  if (json.contains("copy_bytes_per_s")) {
    if (!HasRate(json, "copy_bytes_per_s")) {
      return Error{
          fmt::format("costs of steps have no \"copy_bytes_per_s\" that is 0 or from {} to {}",
                      kLeastRate, kMostRate)};
    }
    costs.copy_bytes_per_second = json["copy_bytes_per_s"].get<double>();
  }
  // As profiles had it while memory and cores were not told apart.
  if (const auto factors = json.find("rank_factors"); factors != json.end()) {
    const auto fits = [](const nlohmann::json& each) {
      return each.is_number() && each.get<double>() > 0 && each.get<double>() < kMostFactor;
    };
    if (!factors->is_array() || std::ssize(*factors) != costs.num_ranks ||
        !std::all_of(factors->begin(), factors->end(), fits)) {
      return Error{
          "costs of steps have \"rank_factors\" that are not a number above 0 for each rank"};
    }
    for (const nlohmann::json& each : *factors) {
      costs.rank_states.push_back({.memory = each.get<double>(), .compute = each.get<double>()});
    }
  } else if (const auto states = json.find("rank_states"); states != json.end()) {
    const auto fits = [](const nlohmann::json& each) {
      return IsFactor(each, "memory") && IsFactor(each, "compute");
    };
    if (!states->is_array() || std::ssize(*states) != costs.num_ranks ||
        !std::all_of(states->begin(), states->end(), fits)) {
      return Error{
          "costs of steps have \"rank_states\" that are not a \"memory\" and a \"compute\" above 0 "
          "for "
          "each rank"};
    }
    for (const nlohmann::json& each : *states) {
      costs.rank_states.push_back(
          {.memory = each["memory"].get<double>(), .compute = each["compute"].get<double>()});
    }
  }
  // Once it was by its own costs that a rank alone was compared, and all it was told was too short.
  if (costs.num_ranks == 1) costs.rank_states.clear();
  if (!json.contains("exchange") || !json.contains("tasks") || !json["tasks"].is_object()) {
    return Error{"costs of steps lack \"exchange\" or \"tasks\""};
  }
  const nlohmann::json& exchange = json["exchange"];
  Result<Curve> seconds = CurveFromJson(exchange, "seconds_over_bytes");
  if (!seconds) return Error{fmt::format("exchanges: {}", seconds.error().message)};
  costs.exchange.seconds = *std::move(seconds);
  if (!IsCostNumber(exchange, "core_s_per_byte", kMostCost)) {
    return Error{
        fmt::format("costs of exchanges have no \"core_s_per_byte\" from 0 to {}", kMostCost)};
  }
  costs.exchange.core_seconds_per_byte = exchange["core_s_per_byte"].get<double>();
  if (exchange.contains("unevenness")) {
    if (!IsCostNumber(exchange, "unevenness", 1)) {
      return Error{"costs of exchanges have an \"unevenness\" that is not from 0 to 1"};
    }
    costs.exchange.unevenness = exchange["unevenness"].get<double>();
  }
  if (exchange.contains("held_out")) {
    costs.exchange_held_out = HeldOutFromJson(exchange["held_out"]);
  }
  if (json.contains("overlapped_steps")) {
    costs.overlapped_held_out = HeldOutFromJson(json["overlapped_steps"]);
  }
  if (json.contains("interval_stretch")) {
    if (!IsCostNumber(json, "interval_stretch", kMostFactor)) {
      return Error{fmt::format(
          "costs of steps have an \"interval_stretch\" that is not from 0 to {}", kMostFactor)};
    }
    costs.interval_stretch = json["interval_stretch"].get<double>();
  }
  if (exchange.contains("kinds") && exchange["kinds"].is_object()) {
    for (const auto& [name, held_out] : exchange["kinds"].items()) {
      const std::optional<size_t> kind = KindNamed(name);
      if (!kind) return Error{fmt::format("\"{}\" is no kind of exchange", name)};
      costs.held_out[*kind] = HeldOutFromJson(held_out);
    }
  }
  // None of these is in profiles of earlier versions.
  if (const auto cached = json.find("cached_weights"); cached != json.end()) {
    if (!IsCostNumber(*cached, "most_bytes", kMostCachedBytes) || !cached->contains("tasks") ||
        !(*cached)["tasks"].is_object()) {
      return Error{"costs of weights in a cache have no \"most_bytes\" or no \"tasks\""};
    }
    costs.cached_weight_bytes = (*cached)["most_bytes"].get<double>();
    if (Status read = ReadTasks((*cached)["tasks"], costs.cached_tasks); !read) return read.error();
  }
  for (const auto& [name, cost] :
       {std::pair("int8_attention", &costs.int8_attention), {"load_beside", &costs.load_beside}}) {
    const auto found = json.find(name);
    if (found == json.end()) continue;
    Result<TaskCost> read = TaskCostFromJson(*found);
    if (!read) return Error{fmt::format("{}: {}", name, read.error().message)};
    *cost = *std::move(read);
  }
  if (costs.int8_attention && json["int8_attention"].contains("held_out")) {
    costs.int8_attention_held_out = HeldOutFromJson(json["int8_attention"]["held_out"]);
  }
  if (Status read = ReadTasks(json["tasks"], costs.tasks); !read) return read.error();
  for (const auto& [name, task] : json["tasks"].items()) {
    if (task.contains("held_out"))
      costs.held_out[*KindNamed(name)] = HeldOutFromJson(task["held_out"]);
  }
  return costs;
}

}  // namespace convene::cost
