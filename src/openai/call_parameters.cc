#include "openai/call_parameters.h"

#include <utility>

#include "base/json.h"

namespace convene::openai {
namespace {

bool Has(JsonTypes types, JsonType type) { return types[static_cast<size_t>(type)]; }

bool HasTypeOf(const nlohmann::ordered_json& value, JsonTypes types) {
  switch (value.type()) {
    case nlohmann::ordered_json::value_t::null:
      return Has(types, JsonType::kNull);
    case nlohmann::ordered_json::value_t::boolean:
      return Has(types, JsonType::kBoolean);
    case nlohmann::ordered_json::value_t::string:
      return Has(types, JsonType::kString);
    case nlohmann::ordered_json::value_t::array:
      return Has(types, JsonType::kArray);
    case nlohmann::ordered_json::value_t::object:
      return Has(types, JsonType::kObject);
    case nlohmann::ordered_json::value_t::number_float:
      return Has(types, JsonType::kNumber);
    default:
      return Has(types, JsonType::kNumber) || Has(types, JsonType::kInteger);
  }
}

}  // namespace

std::string_view NameBetween(std::string_view text, std::string_view begin, std::string_view end) {
  constexpr std::string_view kSpace = " \n\r\t";
  const size_t at = text.find(begin);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + begin.size());
  if (!end.empty()) text = text.substr(0, text.find(end));
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  const std::string_view name = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  return name.find_first_of(" \n\r\t<>") == std::string_view::npos ? name : std::string_view();
}

std::string JsonOfParameter(std::string_view value, JsonTypes types) {
  const bool may_be_string = Has(types, JsonType::kString);
  std::string_view json = value;
  constexpr std::pair<std::string_view, const char*> kWords[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [python, word] : kWords) {
    if (value == python) json = word;
  }
  const auto parsed = ParseOrderedJson(json);
  if (parsed &&
      (!may_be_string || types.all() || (HasTypeOf(*parsed, types) && !parsed->is_string()))) {
    return std::string(json);
  }
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace convene::openai
