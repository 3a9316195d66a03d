#include "openai/call_parameters.h"

#include <utility>

#include "base/json.h"

namespace convene::openai {

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

std::string JsonOfParameter(std::string_view value, bool is_text) {
  if (!is_text) {
    constexpr std::pair<std::string_view, const char*> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (const auto& [python, json] : kWords) {
      if (value == python) return json;
    }
    if (ParseOrderedJson(value)) return std::string(value);
  }
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace convene::openai
