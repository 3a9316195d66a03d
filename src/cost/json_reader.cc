#include "cost/json_reader.h"

#include <fmt/format.h>

namespace convene::cost {
namespace {

using nlohmann::json;

constexpr size_t kMostTextBytes = 4096;

// Neither comparison holds of what is not a number.
bool IsNumber(const json& item, double min, double max) {
  return item.is_number() && item.get<double>() >= min && item.get<double>() <= max;
}

bool IsWhole(const json& item, int64_t min, int64_t max) {
  if (item.is_number_unsigned()) {
    const auto value = item.get<uint64_t>();
    return max >= 0 && value <= static_cast<uint64_t>(max) && static_cast<int64_t>(value) >= min;
  }
  return item.is_number_integer() && item.get<int64_t>() >= min && item.get<int64_t>() <= max;
}

bool IsText(const json& item) {
  return item.is_string() && item.get_ref<const std::string&>().size() <= kMostTextBytes;
}

}  // namespace

JsonReader::JsonReader(const json& object) : object_(object) {
  if (!object.is_object()) error_ = Error{"it is not an object"};
}

void JsonReader::Number(const char* key, double min, double max, double& value) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (!IsNumber(*found, min, max)) {
    return Refuse(key, fmt::format("a number from {} to {}", min, max));
  }
  value = found->get<double>();
}

void JsonReader::Rate(const char* key, double& value) {
  Number(key, 0, kMostRate, value);
  if (!IsRateOrUnknown(value)) {
    Refuse(key, fmt::format("0, or a number from {} to {}", kLeastRate, kMostRate));
  }
}

void JsonReader::Flag(const char* key, bool& value) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_boolean()) return Refuse(key, "true or false");
  value = found->get<bool>();
}

void JsonReader::Text(const char* key, std::string& value) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (!IsText(*found))
    return Refuse(key, fmt::format("a text of at most {} bytes", kMostTextBytes));
  value = found->get<std::string>();
}

void JsonReader::Texts(const char* key, size_t most, std::vector<std::string>& values) {
  const json* found = Array(key, most);
  if (found == nullptr) return;
  for (const json& item : *found) {
    if (!IsText(item)) {
      return Refuse(key, fmt::format("a list of texts of at most {} bytes each", kMostTextBytes));
    }
    values.push_back(item.get<std::string>());
  }
}

void JsonReader::Numbers(const char* key, size_t most, double min, double max,
                         std::vector<double>& values) {
  const json* found = Array(key, most);
  if (found == nullptr) return;
  for (const json& item : *found) {
    if (!IsNumber(item, min, max)) {
      return Refuse(key, fmt::format("a list of numbers from {} to {}", min, max));
    }
    values.push_back(item.get<double>());
  }
}

void JsonReader::Wholes(const char* key, size_t most, int64_t min, int64_t max,
                        std::vector<int32_t>& values) {
  const json* found = Array(key, most);
  if (found == nullptr) return;
  for (const json& item : *found) {
    if (!IsWhole(item, min, max)) {
      return Refuse(key, fmt::format("a list of whole numbers from {} to {}", min, max));
    }
    values.push_back(item.get<int32_t>());
  }
}

const json* JsonReader::Array(const char* key, size_t most) {
  const json* found = Find(key);
  if (found == nullptr || (found->is_array() && found->size() <= most)) return found;
  Refuse(key, fmt::format("a list of at most {} items", most));
  return nullptr;
}

const json* JsonReader::Object(const char* key, size_t most) {
  const json* found = Find(key);
  if (found == nullptr || (found->is_object() && found->size() <= most)) return found;
  Refuse(key, fmt::format("an object of at most {} members", most));
  return nullptr;
}

void JsonReader::Refuse(const char* key, std::string_view wanted) {
  error_ = Error{fmt::format("\"{}\" must be {}", key, wanted)};
}

Status JsonReader::status() const {
  if (error_) return *error_;
  return {};
}

const json* JsonReader::Find(const char* key) {
  if (error_) return nullptr;
  const auto found = object_.find(key);
  if (found != object_.end()) return &*found;
  error_ = Error{fmt::format("\"{}\" is missing", key)};
  return nullptr;
}

std::optional<int64_t> JsonReader::FindWhole(const char* key, int64_t min, int64_t max) {
  const json* found = Find(key);
  if (found == nullptr) return std::nullopt;
  if (IsWhole(*found, min, max)) return found->get<int64_t>();
  Refuse(key, fmt::format("a whole number from {} to {}", min, max));
  return std::nullopt;
}

}  // namespace convene::cost
