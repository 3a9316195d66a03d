// Methods of str that answer a question: startswith, find, isdigit and the like.
#include <fmt/format.h>

#include "base/utf8.h"
#include "jinja/arguments.h"
#include "jinja/builtins.h"
#include "jinja/case_tables.h"
#include "jinja/python_text.h"

namespace convene::jinja {
namespace {

// The part of `text` between two code points, as the optional arguments of find() and the like say.
struct Window {
  std::string_view text;
  size_t begin = 0;      // in bytes
  int64_t first = 0;     // in code points
  bool is_valid = true;  // false: it starts behind the end
};

Window WindowOf(Run& run, const Value& self, const Value& start, const Value& stop) {
  Window window{.text = self.Text()};
  const auto length = static_cast<int64_t>(Length(window.text));
  const auto bound = [&](const Value& part, int64_t otherwise) {
    if (!IsGiven(part)) return otherwise;
    const int64_t i = ToInteger(run, part).value_or(0);
    return i < 0 ? std::max<int64_t>(i + length, 0) : i;
  };
  window.first = bound(start, 0);
  const int64_t last = std::min(bound(stop, length), length);
  window.is_valid = window.first <= last;
  if (!window.is_valid) return window;
  window.begin = ByteOffset(window.text, static_cast<size_t>(window.first));
  const size_t end = ByteOffset(window.text, static_cast<size_t>(last));
  window.text = window.text.substr(window.begin, end - window.begin);
  return window;
}

// The code point at which the argument is found, -1 where it is not.
template <bool from_right>
Value Find(Run& run, const Value& self, Bound& bound) {
  const std::string* part = ToText(run, bound[0]);
  if (part == nullptr || !run.SpendText(self.Text().size())) return None{};
  const Window window = WindowOf(run, self, bound[1], bound[2]);
  if (!window.is_valid) return int64_t{-1};
  const size_t found = from_right ? FindLast(window.text, *part) : FindFirst(window.text, *part);
  if (found == std::string_view::npos) return int64_t{-1};
  return window.first + static_cast<int64_t>(Length(window.text.substr(0, found)));
}

template <bool from_right>
Value Index(Run& run, const Value& self, Bound& bound) {
  const Value found = Find<from_right>(run, self, bound);
  return found.IsInteger() && found.Int() < 0 ? run.Fail("substring not found") : found;
}

Value Count(Run& run, const Value& self, Bound& bound) {
  const std::string* part = ToText(run, bound[0]);
  if (part == nullptr || !run.SpendText(self.Text().size())) return None{};
  const Window window = WindowOf(run, self, bound[1], bound[2]);
  if (!window.is_valid) return int64_t{0};
  if (part->empty()) return static_cast<int64_t>(Length(window.text)) + 1;
  int64_t count = 0;
  for (size_t pos = FindFirst(window.text, *part); pos != std::string_view::npos;
       pos = FindFirst(window.text, *part, pos + part->size())) {
    ++count;
  }
  return count;
}

// The first argument is a text, or a tuple of texts of which one must match.
template <bool at_end>
Value HasAffix(Run& run, const Value& self, Bound& bound) {
  const Window window = WindowOf(run, self, bound[1], bound[2]);
  const Values parts = bound[0].Is(Kind::kTuple) ? bound[0].Elements() : Values{bound[0]};
  for (const Value& part : parts) {
    if (!part.IsString()) {
      return run.Fail(fmt::format("{} first arg must be str or a tuple of str, not {}",
                                  at_end ? "endswith" : "startswith", TypeName(part)));
    }
    if (!run.SpendText(part.Text().size())) return None{};
    const bool matches =
        at_end ? window.text.ends_with(part.Text()) : window.text.starts_with(part.Text());
    if (window.is_valid && matches) return true;
  }
  return false;
}

// Whether there are characters and all are of a kind.
template <bool (*IsOfKind)(char32_t)>
Value All(Run& run, const Value& self) {
  if (!run.SpendText(self.Text().size())) return {};
  const std::string& text = self.Text();
  for (size_t pos = 0; pos < text.size();) {
    if (!IsOfKind(ReadCodePoint(text, &pos))) return false;
  }
  return !text.empty();
}

bool IsDigit(char32_t c) { return IsDecimal(c) || IsOtherDigit(c); }

template <bool (*IsOfKind)(char32_t)>
Value AllOrEmpty(Run& run, const Value& self) {
  return self.Text().empty() ? Value(true) : All<IsOfKind>(run, self);
}

bool IsAscii(char32_t c) { return c < 0x80; }

// Whether there is a cased character and all cased ones are of a kind.
template <bool (*IsOfKind)(char32_t), bool (*IsOfOther)(char32_t)>
Value AllCased(Run& run, const Value& self) {
  if (!run.SpendText(self.Text().size())) return {};
  bool has_one = false;
  for (size_t pos = 0; pos < self.Text().size();) {
    const char32_t c = ReadCodePoint(self.Text(), &pos);
    if (IsOfOther(c) || IsTitle(c)) return false;
    has_one |= IsOfKind(c);
  }
  return has_one;
}

constexpr Builtin kStringQueries[] = {
    {"count", Count, {"", "", ""}, 1},
    {"endswith", HasAffix<true>, {"", "", ""}, 1},
    {"find", Find<false>, {"", "", ""}, 1},
    {"index", Index<false>, {"", "", ""}, 1},
    {"isalnum", All<IsAlphaNumeric>},
    {"isalpha", All<IsAlpha>},
    {"isascii", AllOrEmpty<IsAscii>},
    {"isdecimal", All<IsDecimal>},
    {"isdigit", All<IsDigit>},
    {"isidentifier", nullptr},
    {"islower", AllCased<IsLower, IsUpper>},
    {"isnumeric", nullptr},
    {"isprintable", AllOrEmpty<IsPrintable>},
    {"isspace", All<IsSpace>},
    {"istitle", nullptr},
    {"isupper", AllCased<IsUpper, IsLower>},
    {"rfind", Find<true>, {"", "", ""}, 1},
    {"rindex", Index<true>, {"", "", ""}, 1},
    {"startswith", HasAffix<false>, {"", "", ""}, 1},
};

}  // namespace

std::span<const Builtin> StringQueries() { return kStringQueries; }

}  // namespace convene::jinja
