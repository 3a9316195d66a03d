// Reads the fields of one JSON object that somebody else wrote, each of a type and within bounds.
// Which fields there may be is not its matter.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/sampler.h"
#include "openai/body_fields.h"

namespace convene::openai {

// The first thing wrong is kept; null counts as absent.
class FieldReader {
 public:
  // Keeps references. `where` stands before the names of fields in messages.
  FieldReader(const nlohmann::ordered_json& object, std::string_view where)
      : object_(object), where_(where) {}

  const FieldStatus& status() const { return status_; }

  // Null where the field is absent or null.
  const nlohmann::ordered_json* Find(const char* name) const;

  std::optional<std::string> String(const char* name);
  std::optional<double> Number(const char* name, engine::SamplingRange range);
  std::optional<int64_t> Integer(const char* name, int64_t lowest, int64_t highest);
  std::optional<bool> Bool(const char* name);

  // The message is "WHERE" + `name` + " " + `complaint`.
  void Fail(const char* name, std::string_view complaint);
  // An error as it is.
  void Fail(FieldError error) {
    if (!status_) status_ = std::move(error);
  }

 private:
  const nlohmann::ordered_json& object_;
  std::string where_;
  FieldStatus status_;
};

}  // namespace convene::openai
