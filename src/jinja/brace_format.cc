#include "jinja/brace_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "jinja/attributes.h"
#include "jinja/escape.h"
#include "jinja/format_spec.h"
#include "jinja/repr.h"

namespace convene::jinja {
namespace {

class BraceFormatter {
 public:
  BraceFormatter(Run& run, bool escapes, const Arguments& arguments)
      : run_(run), escapes_(escapes), arguments_(arguments) {}

  // Fields may stand within a specification, but no deeper: Python has the same limit.
  std::string Format(std::string_view text, int depth = 0) {
    if (depth > 1) run_.Fail("Max string recursion exceeded");
    std::string out;
    for (size_t pos = 0; pos < text.size() && !run_.failed();) {
      const char c = text[pos++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (pos < text.size() && text[pos] == c && depth == 0) {
        out += c;  // doubled: the brace itself
        ++pos;
      } else if (c == '}') {
        run_.Fail("Single '}' encountered in format string");
      } else {
        const size_t end = FieldEnd(text, pos);
        if (end == std::string_view::npos) {
          run_.Fail("expected '}' before end of string");
          break;
        }
        out += FormatField(text.substr(pos, end - pos), depth);
        pos = end + 1;
      }
      if (!run_.MayAllocate(out.size())) break;
    }
    return out;
  }

 private:
  // The closing brace of the field whose inside starts at `pos`.
  static size_t FieldEnd(std::string_view text, size_t pos) {
    for (int open = 1; pos < text.size(); ++pos) {
      if (text[pos] == '{') ++open;
      if (text[pos] == '}' && --open == 0) return pos;
    }
    return std::string_view::npos;
  }

  // name[!conversion][:specification]
  std::string FormatField(std::string_view field, int depth) {
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    const std::string_view name = field.substr(0, name_end);
    std::string_view rest = field.substr(name_end);
    char conversion = '\0';
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) {
        run_.Fail("expected ':' after conversion specifier");
        return "";
      }
      conversion = rest[1];
      rest = rest.substr(2);
    }
    // The value first: fields are numbered in the order in which they begin.
    Value value = LookUp(name);
    const std::string spec = rest.empty() ? "" : Format(rest.substr(1), depth + 1);
    if (run_.failed()) return "";
    if (conversion == 'r') {
      value = run_.String(Repr(run_, value));
    } else if (conversion == 's') {
      value = run_.String(Str(run_, value));
    } else if (conversion != '\0') {
      run_.Fail(fmt::format("the conversion '!{}' in a format is not supported", conversion));
    }
    return FormatValueOf(value, spec);
  }

  std::string FormatValueOf(const Value& value, const std::string& spec_text) {
    const bool is_safe = value.IsString() && value.String().safe;
    if (escapes_ && is_safe && !spec_text.empty()) {
      run_.Fail("Unsupported format specification for Markup.");
    }
    std::string out;
    if (spec_text.empty()) {
      out = Str(run_, value);
    } else if (const auto spec = ParseFormatSpec(run_, spec_text)) {
      out = FormatValue(run_, value, *spec);
    }
    return escapes_ && !is_safe ? EscapeHtml(out) : out;
  }

  // first.attribute[subscript]...
  Value LookUp(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, first_end));
    std::string_view rest = name.substr(first_end);
    while (!rest.empty() && !run_.failed()) {
      const bool is_attribute = rest[0] == '.';
      const size_t end =
          is_attribute ? std::min(rest.find_first_of(".[", 1), rest.size()) : rest.find(']');
      if ((!is_attribute && rest[0] != '[') || end == std::string_view::npos || end == 1) {
        return run_.Fail("Empty attribute or missing ']' in format string");
      }
      const std::string_view key = rest.substr(1, end - 1);
      if (is_attribute) {
        value = GetAttribute(run_, value, key);
      } else {
        const std::optional<int64_t> index = Index(key);
        value = GetItem(run_, value, index ? Value(*index) : run_.String(std::string(key)));
      }
      rest = rest.substr(is_attribute ? end : end + 1);
    }
    return value;
  }

  static std::optional<int64_t> Index(std::string_view text) {
    int64_t index = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), index);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
    return is_number && text[0] != '-' ? std::optional(index) : std::nullopt;
  }

  Value First(std::string_view name) {
    const std::optional<int64_t> index = name.empty() ? std::nullopt : Index(name);
    if (name.empty() || index) {
      if ((has_automatic_ && index) || (has_manual_ && !index)) {
        return run_.Fail("cannot mix manual field specification and automatic field numbering");
      }
      (index ? has_manual_ : has_automatic_) = true;
      const size_t place = index ? static_cast<size_t>(*index) : num_automatic_++;
      if (place < arguments_.positional.size()) return arguments_.positional[place];
      return run_.Fail(
          fmt::format("Replacement index {} out of range for positional args tuple", place));
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    return run_.Fail(fmt::format("no argument '{}' for a format", name));
  }

  Run& run_;
  const bool escapes_;
  const Arguments& arguments_;
  bool has_automatic_ = false, has_manual_ = false;
  size_t num_automatic_ = 0;
};

}  // namespace

Value BraceFormat(Run& run, const Value& format, const Arguments& arguments) {
  if (!run.SpendText(format.Text().size())) return None{};
  const bool is_safe = format.String().safe;
  return run.String(BraceFormatter(run, is_safe, arguments).Format(format.Text()), is_safe);
}

}  // namespace convene::jinja
