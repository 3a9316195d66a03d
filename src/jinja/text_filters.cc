// Filters that make text. A value that is no string is printed first, as Python's str() does.
#include <fmt/format.h>

#include "base/utf8.h"
#include "jinja/arguments.h"
#include "jinja/builtins.h"
#include "jinja/element_access.h"
#include "jinja/escape.h"
#include "jinja/json_text.h"
#include "jinja/percent_format.h"
#include "jinja/python_text.h"
#include "jinja/replace.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

// The string method of the same name, on the value as text; safe text stays safe.
Value CallStringMethod(Run& run, std::string_view name, const Value& input, Values arguments = {}) {
  const Value text = ToString(run, input);
  if (run.failed()) return None{};
  return FindIn(StringMethods(), name)->Call(run, text, {.positional = std::move(arguments)});
}

Value Capitalized(Run& run, const Value& input) {
  return CallStringMethod(run, "capitalize", input);
}
Value Lowered(Run& run, const Value& input) { return CallStringMethod(run, "lower", input); }
Value Uppered(Run& run, const Value& input) { return CallStringMethod(run, "upper", input); }

Value Trim(Run& run, const Value& input, Bound& bound) {
  if (bound[0].IsMissing()) bound[0] = None{};
  return CallStringMethod(run, "strip", input, {bound[0]});
}

Value Center(Run& run, const Value& input, Bound& bound) {
  if (bound[0].IsMissing()) bound[0] = int64_t{80};
  return CallStringMethod(run, "center", input, {bound[0]});
}

// Unlike the method: words start after white space and opening brackets, not after any non-letter.
Value Titled(Run& run, const Value& input) {
  const std::string text = Str(run, input);
  if (!run.SpendText(text.size())) return None{};
  const auto separates = [](char32_t c) {
    return IsSpace(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) !=
                                          std::string_view::npos);
  };
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const bool is_separator = separates(ReadCodePoint(text, &pos));
    size_t first_end = pos;
    for (size_t next = pos; next < text.size(); pos = next) {
      if (separates(ReadCodePoint(text, &next)) != is_separator) break;
    }
    out += ToUpper(std::string_view(text).substr(begin, first_end - begin));
    out += ToLower(std::string_view(text).substr(first_end, pos - first_end));
  }
  return run.String(std::move(out));
}

Value Replaced(Run& run, const Value& input, Bound& bound) {
  const int64_t max_count = IsGiven(bound[2]) ? IntegerOr(run, bound[2], -1) : -1;
  const std::string text = Str(run, input);
  const std::string old_part = Str(run, bound[0]), new_part = Str(run, bound[1]);
  if (run.failed()) return None{};
  return run.String(ReplaceText(run, text, old_part, new_part, max_count));
}

Value Joined(Run& run, const Value& input, Bound& bound) {
  const std::string separator = Str(run, bound[0]);
  const AttributePath path(run, NoneIfMissing(bound[1]));
  const auto items = Iterate(run, input);
  std::string out;
  for (size_t i = 0; i < items->values.size() && !run.failed(); ++i) {
    const std::string part = Str(run, path.Get(items->values[i]));
    if (!run.SpendText(part.size() + separator.size()) ||
        !run.MayAllocate(out.size() + part.size() + separator.size())) {
      return None{};
    }
    if (i > 0) out += separator;
    out += part;
  }
  return run.String(std::move(out));
}

Value Indented(Run& run, const Value& input, Bound& bound) {
  if (input.IsUndefined()) return run.Fail(input.AsUndefined().message);
  const std::string* text = ToText(run, input);
  if (text == nullptr) return None{};
  std::string indent;
  if (bound[0].IsString()) {
    indent = bound[0].Text();
  } else {
    const int64_t width = IntegerOr(run, bound[0], 4);
    if (run.failed() || !run.MayAllocate(static_cast<size_t>(std::max<int64_t>(width, 0)))) {
      return None{};
    }
    indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const std::string with_end = *text + "\n";  // an empty last line counts
  const bool indents_first = IsTrueOr(bound[1], false), indents_blank = IsTrueOr(bound[2], false);
  std::string out = indents_first ? indent : "";
  bool is_first = true;
  for (std::string_view rest = with_end; !rest.empty();) {
    const std::string_view line = TakeLine(&rest);
    if (!run.SpendText(line.size() + indent.size()) ||
        !run.MayAllocate(out.size() + line.size() + indent.size())) {
      return None{};
    }
    if (!is_first) out += '\n';
    if (!is_first && (indents_blank || !line.empty())) out += indent;
    out += line;
    is_first = false;
  }
  return run.String(std::move(out), input.String().safe);
}

Value Truncated(Run& run, const Value& input, Bound& bound) {
  if (input.IsUndefined()) return input;
  const std::string* text = ToText(run, input);
  const int64_t length = IntegerOr(run, bound[0], 255);
  const Value end = bound[2].IsMissing() ? run.String("...") : bound[2];
  const std::string* end_text = ToText(run, end);
  const int64_t leeway = IsGiven(bound[3]) ? IntegerOr(run, bound[3], 0) : 5;
  if (run.failed() || !run.SpendText(text->size())) return None{};
  const int64_t kept = length - static_cast<int64_t>(Length(*end_text));
  if (kept < 0) {
    return run.Fail(fmt::format("expected length >= {}, got {}", Length(*end_text), length));
  }
  if (leeway < 0) return run.Fail(fmt::format("expected leeway >= 0, got {}", leeway));
  if (static_cast<int64_t>(Length(*text)) - leeway <= length) return input;
  std::string_view start = *text;
  start = start.substr(0, ByteOffset(start, static_cast<size_t>(kept)));
  if (!IsTrueOr(bound[1], false)) start = start.substr(0, start.rfind(' '));
  return JoinTexts(run, run.String(std::string(start), input.String().safe), end);
}

Value ToJsonText(Run& run, const Value& input, Bound& bound) {
  JsonStyle style{.ensure_ascii = IsTrueOr(bound[0], false),
                  .indent = std::nullopt,
                  .sort_keys = IsTrueOr(bound[3], false)};
  if (bound[1].IsString()) {
    style.indent = bound[1].Text();
  } else if (IsGiven(bound[1])) {
    const int64_t width = std::max<int64_t>(ToInteger(run, bound[1]).value_or(0), 0);
    if (!run.MayAllocate(static_cast<size_t>(width))) return None{};
    style.indent = std::string(static_cast<size_t>(width), ' ');
  }
  if (style.indent) style.item_separator = ",";
  if (IsGiven(bound[2])) {
    const auto separators = Iterate(run, bound[2]);
    if (run.failed()) return None{};
    if (separators->values.size() != 2 || !separators->values[0].IsString() ||
        !separators->values[1].IsString()) {
      return run.Fail("separators must be a pair of strings");
    }
    style.item_separator = separators->values[0].Text();
    style.key_separator = separators->values[1].Text();
  }
  return run.String(ToJson(run, input, style));
}

// Not Jinja's: templates of DeepSeek's later models read arguments with it, and other engines have
// it.
Value ParsedJson(Run& run, const Value& input) {
  const std::string* text = ToText(run, input);
  return text == nullptr ? Value(None{}) : ParseJsonText(run, *text);
}

Value Formatted(Run& run, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    return run.Fail("can't handle positional and keyword arguments at the same time");
  }
  std::vector<Dict::Entry> named;
  for (const auto& [name, value] : arguments.named) named.emplace_back(run.String(name), value);
  return PercentFormat(
      run, ToString(run, input),
      named.empty() ? run.NewTuple(arguments.positional) : run.NewDict(std::move(named)));
}

Value MarkedSafe(Run& run, const Value& input) {
  return run.String(Str(run, input), /*safe=*/true);
}

Value ForceEscaped(Run& run, const Value& input) {
  return run.String(EscapeHtml(Str(run, input)), /*safe=*/true);
}

Value WordCount(Run& run, const Value& input) {
  const std::string text = Str(run, input);
  if (!run.SpendText(text.size())) return None{};
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = ReadCodePoint(text, &pos);
    const bool is_part = c == '_' || IsAlphaNumeric(c);
    count += is_part && !in_word ? 1 : 0;
    in_word = is_part;
  }
  return count;
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", Capitalized},
    {"center", Center, {"width"}},
    {"e", Escape},
    {"escape", Escape},
    {"forceescape", ForceEscaped},
    {"from_json", ParsedJson},
    {"format", Formatted},
    {"indent", Indented, {"width", "first", "blank"}},
    {"join", Joined, {"d", "attribute"}},
    {"lower", Lowered},
    {"replace", Replaced, {"old", "new", "count"}, 2},
    {"safe", MarkedSafe},
    {"string", ToString},
    {"title", Titled},
    {"tojson", ToJsonText, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", Trim, {"chars"}},
    {"truncate", Truncated, {"length", "killwords", "end", "leeway"}},
    {"upper", Uppered},
    {"wordcount", WordCount},
};

}  // namespace

std::span<const Builtin> TextFilters() { return kTextFilters; }

}  // namespace convene::jinja
