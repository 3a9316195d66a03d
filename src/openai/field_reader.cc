#include "openai/field_reader.h"

namespace convene::openai {

using nlohmann::ordered_json;

const ordered_json* FieldReader::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> FieldReader::String(const char* name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(name, "must be a string");
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const char* name, engine::SamplingRange range) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && value->get<double>() >= range.min && value->get<double>() <= range.max)
    return value->get<double>();
  Fail(name, fmt::format("must be a number from {} to {}", range.min, range.max));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Integer(const char* name, int64_t lowest, int64_t highest) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const bool is_beyond_64_bits =  // of a signed integer
      value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX};
  if (value->is_number_integer() && !is_beyond_64_bits && value->get<int64_t>() >= lowest &&
      value->get<int64_t>() <= highest) {
    return value->get<int64_t>();
  }
  Fail(name, fmt::format("must be an integer from {} to {}", lowest, highest));
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(const char* name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, "must be true or false");
  return std::nullopt;
}

void FieldReader::Fail(const char* name, std::string_view complaint) {
  Fail(FieldError{Error{fmt::format("{}{} {}", where_, name, complaint)}, name});
}

}  // namespace convene::openai
