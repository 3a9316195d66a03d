#include "cli/value_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

#include "base/quote.h"
#include "cli/parsed_by.h"

namespace convene::cli {
namespace {

// Checks come before values are set, so that `set` only sees what `parse` accepts.
template <typename Parse, typename Set>
CLI::Option* AddParsed(CLI::App& app, const std::string& names, const std::string& description,
                       Parse parse, Set set) {
  return app
      .add_option_function<std::string>(
          names, [parse, set](const std::string& text) { set(*parse(text)); }, description)
      ->check(ParsedBy(parse));
}

}  // namespace

template <typename T>
Result<T> ParseNumber(std::string_view text, Bounds<T> bounds) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc() && stop == end;
  // Written so that NaN fails, too.
  if (is_number && value >= bounds.min && value <= bounds.max) return value;
  return Error{fmt::format("{} is not {} from {} to {}", Quote(text),
                           std::is_integral_v<T> ? "a whole number" : "a number", bounds.min,
                           bounds.max)};
}

Result<std::vector<std::string>> ParseList(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty()) {
      return Error{
          fmt::format("{} has an empty part; separate the parts by single commas", Quote(text))};
    }
    if (std::find(parts.begin(), parts.end(), part) != parts.end()) {
      return Error{fmt::format("{} names {} twice", Quote(text), Quote(part))};
    }
    parts.emplace_back(part);
  }
  return parts;
}

template <typename Value>
CLI::Option* AddNumber(CLI::App& app, const std::string& names, Value& value,
                       Bounds<NumberOf<Value>> bounds, const std::string& description) {
  const auto parse = [bounds](const std::string& text) { return ParseNumber(text, bounds); };
  return AddParsed(app, names, description, parse,
                   [&value](NumberOf<Value> number) { value = number; })
      ->type_name("N");
}

CLI::Option* AddNumbers(CLI::App& app, const std::string& names, std::vector<int>& values,
                        Bounds<int> bounds, const std::string& description) {
  const auto parse = [bounds](const std::string& text) -> Result<std::vector<int>> {
    const Result<std::vector<std::string>> parts = ParseList(text);
    if (!parts) return parts.error();
    std::vector<int> numbers;
    for (const std::string& part : *parts) {
      const Result<int> number = ParseNumber(part, bounds);
      if (!number) return number.error();
      if (std::find(numbers.begin(), numbers.end(), *number) != numbers.end()) {
        return Error{fmt::format("{} names {} twice", Quote(text), *number)};
      }
      numbers.push_back(*number);
    }
    return numbers;
  };
  return AddParsed(app, names, description, parse,
                   [&values](std::vector<int> numbers) { values = std::move(numbers); });
}

CLI::Option* AddWords(CLI::App& app, const std::string& names, std::vector<std::string>& words,
                      const std::string& description) {
  return AddParsed(app, names, description, ParseList,
                   [&words](std::vector<std::string> parts) { words = std::move(parts); });
}

CLI::Option* AddText(CLI::App& app, const std::string& names, std::optional<std::string>& text,
                     const std::string& description) {
  return app.add_option_function<std::string>(
      names, [&text](const std::string& given) { text = given; }, description);
}

CLI::Option* AddPath(CLI::App& app, const std::string& names, std::string& path,
                     const std::string& description) {
  const auto complaint = [](const std::string& text) {
    return text.empty() ? "the path is empty" : std::string();
  };
  CLI::Option* option =
      app.add_option(names, path, description)->check(CLI::Validator(complaint, ""));
  return names.starts_with('-') ? option->type_name("FILE") : option->type_name("")->required();
}

template Result<int> ParseNumber(std::string_view, Bounds<int>);
template Result<uint64_t> ParseNumber(std::string_view, Bounds<uint64_t>);
template Result<double> ParseNumber(std::string_view, Bounds<double>);

template CLI::Option* AddNumber(CLI::App&, const std::string&, int&, Bounds<int>,
                                const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, uint64_t&, Bounds<uint64_t>,
                                const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, double&, Bounds<double>,
                                const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, std::optional<int>&, Bounds<int>,
                                const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, std::optional<uint64_t>&,
                                Bounds<uint64_t>, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, std::optional<double>&,
                                Bounds<double>, const std::string&);

}  // namespace convene::cli
