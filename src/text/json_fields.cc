#include "text/json_fields.h"

#include "base/quote.h"
#include "base/utf8.h"

namespace convene::text {

JsonFields::JsonFields(const nlohmann::json& object, std::string_view where)
    : object_(&object), where_(where) {
  if (!object.is_object()) status_ = Error{fmt::format("{} is no JSON object", where)};
}

const nlohmann::json* JsonFields::Find(const char* key) const {
  if (!object_->is_object()) return nullptr;
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(const char* key, std::string_view expected) {
  if (!status_) return;
  const nlohmann::json* value = Find(key);
  std::string found = "missing";
  if (value != nullptr && value->is_string()) {
    found = Quote(value->get_ref<const std::string&>());
  } else if (value != nullptr && value->is_structured()) {
    found = value->is_array() ? "an array" : "an object";
  } else if (value != nullptr) {
    found = value->dump();  // a number or boolean
  }
  status_ = Error{fmt::format("{}: \"{}\" is {}, but must be {}", where_, key, found, expected)};
}

std::string JsonFields::String(const char* key, std::optional<std::string> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr && fallback) return *std::move(fallback);
  if (value != nullptr && value->is_string()) return value->get_ref<const std::string&>();
  Fail(key, "a string");
  return {};
}

bool JsonFields::Bool(const char* key, std::optional<bool> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  Fail(key, "true or false");
  return false;
}

uint64_t JsonFields::Count(const char* key) {
  const nlohmann::json* value = Find(key);
  if (value != nullptr && value->is_number_unsigned()) return value->get<uint64_t>();
  Fail(key, "a whole number");
  return 0;
}

const nlohmann::json& JsonFields::Array(const char* key) {
  static const nlohmann::json empty = nlohmann::json::array();
  const nlohmann::json* value = Find(key);
  if (value != nullptr && value->is_array()) return *value;
  Fail(key, "an array");
  return empty;
}

const nlohmann::json& JsonFields::Object(const char* key) {
  static const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* value = Find(key);
  if (value != nullptr && value->is_object()) return *value;
  Fail(key, "an object");
  return empty;
}

std::string JsonFields::Character(const char* key) {
  std::string text = String(key);
  size_t end = 0;
  if (!text.empty()) ReadCodePoint(text, &end);
  if (end == 0 || end != text.size()) Fail(key, "one character");
  return text;
}

}  // namespace convene::text
