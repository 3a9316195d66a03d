#include "engine/load_options.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/check.h"

namespace convene::engine {
namespace {

using nlohmann::json;

// The one list of the fields that travel; `visit` takes a name and a field.
template <typename Options, typename Visit>
void ForEachField(Options& options, const Visit& visit) {
  visit("weights", options.formats.weights);
  visit("int4_group", options.formats.int4_group);
  visit("activations", options.formats.activations);
  visit("kv", options.formats.kv);
  visit("numa", options.numa);
  visit("num_threads", options.num_threads);
  visit("context", options.context);
  visit("max_step_tokens", options.max_step_tokens);
  visit("max_sequences", options.max_sequences);
  visit("expert_capacity", options.expert_capacity);
  visit("plan", options.plan);
  visit("router_skew", options.experiment.router.skew);
  visit("router_experts", options.experiment.router.num_experts);
  visit("record", options.record);
  visit("verify_checkpoint", options.verify_checkpoint);
}

template <typename T>
json FieldToJson(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else {
    return value;
  }
}

template <typename T>
json FieldToJson(const std::optional<T>& value) {
  return value ? FieldToJson(*value) : json();
}

json FieldToJson(const plan::Plan& plan) { return plan::ToJson(plan); }

template <typename T>
void ReadField(const json& field, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(field.get<int>());
  } else {
    value = field.get<T>();
  }
}

template <typename T>
void ReadField(const json& field, std::optional<T>& value) {
  value.reset();
  if (!field.is_null()) ReadField(field, value.emplace());
}

void ReadField(const json& field, plan::Plan& plan) {
  Result<plan::Plan> read = plan::PlanFromJson(field);
  CHECK(read.ok(), "{}", read.error().message);
  plan = *std::move(read);
}

}  // namespace

json ToJson(const LoadOptions& options) {
  json message = json::object();
  ForEachField(options,
               [&](const char* name, const auto& field) { message[name] = FieldToJson(field); });
  return message;
}

LoadOptions LoadOptionsFromJson(const json& message) {
  LoadOptions options;
  ForEachField(options, [&](const char* name, auto& field) { ReadField(message.at(name), field); });
  return options;
}

}  // namespace convene::engine
