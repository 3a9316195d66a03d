#include "model/config_fields.h"

#include <nlohmann/json.hpp>

#include "base/quote.h"

namespace convene::model {
namespace {

using nlohmann::json;

const json& EmptyObject() {
  static const json empty = json::object();
  return empty;
}

// "0", "null", "a list of 3": short enough for a message.
std::string Describe(const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return fmt::format("a list of {}", value.size());
    case json::value_t::string:
      return Quote(value.get_ref<const std::string&>());
    default:
      return value.dump();
  }
}

std::string RangeText(IntegerRange range) {
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

}  // namespace

ConfigFields::ConfigFields(const json& object, std::optional<Error>& first_error, std::string path)
    : object_(&object), first_error_(first_error), path_(std::move(path)) {
  if (object.is_object()) return;
  Fail(fmt::format("the configuration is {}, but must be an object", Describe(object)));
  object_ = &EmptyObject();
}

void ConfigFields::Fail(std::string message) {
  if (!first_error_) first_error_ = Error{std::move(message)};
}

void ConfigFields::Mistake(std::string_view name, const json& value, std::string_view expected) {
  Fail(fmt::format("{}{} is {}, but must be {}", path_, name, Describe(value), expected));
}

bool ConfigFields::empty() const { return object_->empty(); }

const json* ConfigFields::Find(std::string_view name) const {
  const auto found = object_->find(name);
  return found == object_->end() ? nullptr : &*found;
}

bool ConfigFields::Contains(std::string_view name) const { return Find(name) != nullptr; }

bool ConfigFields::IsNull(std::string_view name) const {
  const json* value = Find(name);
  return value != nullptr && value->is_null();
}

std::optional<int> ConfigFields::CheckedInteger(std::string_view name, const json& value,
                                                IntegerRange range) {
  CHECK(range.min <= range.max && range.min >= INT32_MIN && range.max <= INT32_MAX);
  // Values above 2^63 are unsigned in this library, and would turn negative as int64_t.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (fits && value.get<int64_t>() >= range.min && value.get<int64_t>() <= range.max) {
    return value.get<int>();
  }
  Mistake(name, value, RangeText(range));
  return std::nullopt;
}

std::optional<int> ConfigFields::OptionalInteger(std::string_view name, IntegerRange range) {
  if (!Has(name)) return std::nullopt;
  return CheckedInteger(name, *Find(name), range);
}

int ConfigFields::Integer(std::string_view name, int fallback, IntegerRange range) {
  return OptionalInteger(name, range).value_or(fallback);
}

int ConfigFields::Integer(std::initializer_list<std::string_view> names, int fallback,
                          IntegerRange range) {
  for (const std::string_view name : names) {
    if (Has(name)) return Integer(name, fallback, range);
  }
  return fallback;
}

std::optional<double> ConfigFields::OptionalNumber(std::string_view name, NumberRange range) {
  if (!Has(name)) return std::nullopt;
  const json& value = *Find(name);
  if (value.is_number() && value.get<double>() >= range.min && value.get<double>() <= range.max) {
    return value.get<double>();
  }
  Mistake(name, value, fmt::format("a number from {} to {}", range.min, range.max));
  return std::nullopt;
}

double ConfigFields::Number(std::string_view name, double fallback, NumberRange range) {
  return OptionalNumber(name, range).value_or(fallback);
}

bool ConfigFields::Boolean(std::string_view name, bool fallback) {
  if (!Has(name)) return fallback;
  const json& value = *Find(name);
  if (value.is_boolean()) return value.get<bool>();
  Mistake(name, value, "true or false");
  return fallback;
}

std::string ConfigFields::Text(std::string_view name, std::string_view fallback) {
  if (!Has(name)) return std::string(fallback);
  const json& value = *Find(name);
  if (value.is_string()) return value.get<std::string>();
  Mistake(name, value, "a string");
  return std::string(fallback);
}

std::vector<int> ConfigFields::Integers(std::string_view name, IntegerRange range) {
  if (!Has(name)) return {};
  const json& list = *Find(name);
  if (!list.is_array()) {
    Mistake(name, list, "a list of integers");
    return {};
  }
  std::vector<int> values;
  for (const json& element : list) {
    const auto value = CheckedInteger(fmt::format("{}[{}]", name, values.size()), element, range);
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

std::vector<std::string> ConfigFields::Texts(std::string_view name) {
  if (!Has(name)) return {};
  const json& list = *Find(name);
  if (!list.is_array()) {
    Mistake(name, list, "a list of strings");
    return {};
  }
  std::vector<std::string> values;
  for (const json& element : list) {
    if (!element.is_string()) {
      Mistake(fmt::format("{}[{}]", name, values.size()), element, "a string");
      return {};
    }
    values.push_back(element.get<std::string>());
  }
  return values;
}

ConfigFields ConfigFields::Object(std::string_view name) {
  const std::string path = fmt::format("{}{}.", path_, name);
  if (!Has(name)) return ConfigFields(EmptyObject(), first_error_, path);
  const json& value = *Find(name);
  if (value.is_object()) return ConfigFields(value, first_error_, path);
  Mistake(name, value, "an object");
  return ConfigFields(EmptyObject(), first_error_, path);
}

}  // namespace convene::model
