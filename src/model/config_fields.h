// Checked reading of a config.json: type and range of every field. What the fields mean is the
// families' business.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::model {

// Inclusive bounds.
struct IntegerRange {
  int64_t min = 0;
  int64_t max = 0;
};
struct NumberRange {
  double min = 0;
  double max = 0;
};

// Reads fields of one JSON object. After the first mistake it keeps going with fallback values, all
// within range, so that a family reads its fields one after the other and looks at ok() once,
// before it computes or allocates anything with them.
class ConfigFields {
 public:
  // `object` (an object; anything else is the first mistake) and `first_error` must outlive this.
  // `path` goes before each name in messages, e.g. "ffn_config.".
  ConfigFields(const nlohmann::json& object, std::optional<Error>& first_error,
               std::string path = "");

  bool ok() const { return !first_error_; }
  const Error& error() const { return *first_error_; }  // precondition: !ok()

  // Notes a mistake, unless there was one before.
  void Fail(std::string message);

  bool empty() const;  // the object has no fields

  // Present at all; present with the value null; present with any other value.
  bool Contains(std::string_view name) const;
  bool IsNull(std::string_view name) const;
  bool Has(std::string_view name) const { return Contains(name) && !IsNull(name); }

  // The value of the field; absent or null: `fallback`.
  int Integer(std::string_view name, int fallback, IntegerRange range);
  double Number(std::string_view name, double fallback, NumberRange range);
  bool Boolean(std::string_view name, bool fallback);
  std::string Text(std::string_view name, std::string_view fallback);

  // Of several spellings of one field: the first that has a value.
  int Integer(std::initializer_list<std::string_view> names, int fallback, IntegerRange range);

  // Absent or null: nothing.
  std::optional<int> OptionalInteger(std::string_view name, IntegerRange range);
  std::optional<double> OptionalNumber(std::string_view name, NumberRange range);
  std::vector<int> Integers(std::string_view name, IntegerRange range);
  std::vector<std::string> Texts(std::string_view name);

  // The object in a field, its mistakes noted here; absent or null: an object without fields.
  ConfigFields Object(std::string_view name);

 private:
  const nlohmann::json* Find(std::string_view name) const;
  std::optional<int> CheckedInteger(std::string_view name, const nlohmann::json& value,
                                    IntegerRange range);
  void Mistake(std::string_view name, const nlohmann::json& value, std::string_view expected);

  const nlohmann::json* object_;
  std::optional<Error>& first_error_;
  std::string path_;
};

}  // namespace convene::model
