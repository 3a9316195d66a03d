// Reads the fields of a JSON object with the right types, or remembers what was wrong first. It
// does not parse JSON (base/json.h) and knows no format.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::text {

// Values after an error are defaults: read everything, then ask for status().
class JsonFields {
 public:
  // `where` begins the messages: "normalizer Replace". Both must outlive the reader.
  JsonFields(const nlohmann::json& object, std::string_view where);

  // Required, unless a default is given, which also stands for null.
  std::string String(const char* key, std::optional<std::string> fallback = std::nullopt);
  bool Bool(const char* key, std::optional<bool> fallback = std::nullopt);
  uint64_t Count(const char* key);
  const nlohmann::json& Array(const char* key);
  const nlohmann::json& Object(const char* key);
  // One character.
  std::string Character(const char* key);

  // Null if there is no such field or it is null.
  const nlohmann::json* Find(const char* key) const;

  void Fail(const char* key, std::string_view expected);
  const Status& status() const { return status_; }

 private:
  const nlohmann::json* object_;
  std::string_view where_;
  Status status_;
};

}  // namespace convene::text
