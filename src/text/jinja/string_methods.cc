// Methods of str that make other strings. Where the string is marked safe, so is the result, and
// text that comes in is escaped (Python's Markup).
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "text/jinja/arguments.h"
#include "text/jinja/brace_format.h"
#include "text/jinja/escape.h"
#include "text/jinja/format_spec.h"
#include "text/jinja/methods.h"
#include "text/jinja/python_text.h"
#include "text/jinja/replace.h"
#include "text/jinja/sequence.h"
#include "text/utf8.h"

namespace convene::text::jinja {
namespace {

// A string of the same safety as `self`.
Value Like(Run& run, const Value& self, std::string_view text) {
  return run.String(std::string(text), self.String().safe);
}

template <std::string (*Transform)(std::string_view)>
Value Transformed(Run& run, const Value& self, const Arguments& arguments) {
  if (!BindNothing(run, "str method", arguments) || !run.SpendText(self.Text().size())) return {};
  return Like(run, self, Transform(self.Text()));
}

enum class Side { kLeft, kRight, kBoth };

template <Side side>
Value Strip(Run& run, const Value& self, const Arguments& arguments) {
  Value characters;
  if (!Bind(run, "strip", arguments, {""}, 0, &characters)) return None{};
  const bool has_set = !characters.IsMissing() && !characters.IsNone();
  const std::string* set_text = has_set ? ToText(run, characters) : nullptr;
  if (run.failed() || !run.SpendText(self.Text().size() + (set_text ? set_text->size() : 0))) {
    return None{};
  }
  const CharacterSet set(set_text ? *set_text : "");
  std::string_view text = self.Text();
  if (side != Side::kRight) text = StripLeft(text, set_text ? &set : nullptr);
  if (side != Side::kLeft) text = StripRight(text, set_text ? &set : nullptr);
  return Like(run, self, text);
}

// Runs of text between whitespace; at most `max_splits` splits, counted from the left.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (text = StripLeft(text); !text.empty(); text = StripLeft(text)) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(StripRight(text));
      break;
    }
    size_t end = 0;
    for (size_t next = 0; next < text.size(); end = next) {
      if (IsSpace(ReadCodePoint(text, &next))) break;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

// The same, counted from the right.
std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (text = StripRight(text); !text.empty(); text = StripRight(text)) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(StripLeft(text));
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const size_t previous = PreviousCharacter(text, begin);
      size_t pos = previous;
      if (IsSpace(ReadCodePoint(text, &pos))) break;
      begin = previous;
    }
    parts.push_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t max_splits) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = FindFirst(text, separator, begin);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> SplitAtFromRight(std::string_view text, std::string_view separator,
                                               int64_t max_splits) {
  // Searched backwards, so that overlapping separators are found from the right.
  const std::string reversed(text.rbegin(), text.rend());
  const std::string reversed_separator(separator.rbegin(), separator.rend());
  std::vector<std::string_view> parts;
  for (std::string_view part : SplitAt(reversed, reversed_separator, max_splits)) {
    const auto end = text.size() - static_cast<size_t>(part.data() - reversed.data());
    parts.push_back(text.substr(end - part.size(), part.size()));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value ListOf(Run& run, const Value& self, const std::vector<std::string_view>& parts) {
  constexpr size_t kPartBytes = 160;
  if (!run.MayAllocate(parts.size() * kPartBytes)) return None{};
  Values values;
  values.reserve(parts.size());
  for (const std::string_view part : parts) values.push_back(Like(run, self, part));
  return run.NewList(std::move(values));
}

template <bool from_right>
Value Split(Run& run, const Value& self, const Arguments& arguments) {
  Value bound[2];
  if (!Bind(run, "split", arguments, {"sep", "maxsplit"}, 0, bound)) return None{};
  int64_t max_splits = -1;
  if (!bound[1].IsMissing()) max_splits = ToInteger(run, bound[1]).value_or(-1);
  if (run.failed() || !run.SpendText(self.Text().size())) return None{};
  const std::string& text = self.Text();
  if (bound[0].IsMissing() || bound[0].IsNone()) {
    return ListOf(
        run, self,
        from_right ? SplitAtSpaceFromRight(text, max_splits) : SplitAtSpace(text, max_splits));
  }
  const std::string* separator = ToText(run, bound[0]);
  if (separator == nullptr) return None{};
  if (separator->empty()) return run.Fail("empty separator");
  return ListOf(run, self,
                from_right ? SplitAtFromRight(text, *separator, max_splits)
                           : SplitAt(text, *separator, max_splits));
}

Value Lines(Run& run, const Value& self, const Arguments& arguments) {
  Value keeps_ends;
  if (!Bind(run, "splitlines", arguments, {"keepends"}, 0, &keeps_ends)) return None{};
  if (!run.SpendText(self.Text().size())) return None{};
  return ListOf(run, self, SplitLines(self.Text(), IsTrueOr(keeps_ends, false)));
}

template <bool from_right>
Value Partition(Run& run, const Value& self, const Arguments& arguments) {
  Value separator;
  if (!Bind(run, "partition", arguments, {""}, 1, &separator)) return None{};
  const std::string* part = ToText(run, separator);
  if (part == nullptr || !run.SpendText(self.Text().size())) return None{};
  if (part->empty()) return run.Fail("empty separator");
  const std::string_view text = self.Text();
  const size_t found = from_right ? FindLast(text, *part) : FindFirst(text, *part);
  if (found == std::string_view::npos) {
    const Value empty = Like(run, self, ""), all = Like(run, self, text);
    return from_right ? run.NewTuple({empty, empty, all}) : run.NewTuple({all, empty, empty});
  }
  return run.NewTuple({Like(run, self, text.substr(0, found)), Like(run, self, *part),
                       Like(run, self, text.substr(found + part->size()))});
}

Value Replace(Run& run, const Value& self, const Arguments& arguments) {
  Value bound[3];
  if (!Bind(run, "replace", arguments, {"", "", ""}, 2, bound)) return None{};
  const std::string* old_part = ToText(run, bound[0]);
  if (self.String().safe) bound[1] = Escape(run, bound[1]);
  const std::string* new_part = ToText(run, bound[1]);
  int64_t max_count = -1;
  if (!bound[2].IsMissing()) max_count = ToInteger(run, bound[2]).value_or(-1);
  if (run.failed()) return None{};
  return Like(run, self, ReplaceText(run, self.Text(), *old_part, *new_part, max_count));
}

template <bool is_prefix>
Value RemoveAffix(Run& run, const Value& self, const Arguments& arguments) {
  Value affix;
  if (!Bind(run, "removeprefix", arguments, {""}, 1, &affix)) return None{};
  const std::string* part = ToText(run, affix);
  if (part == nullptr) return None{};
  std::string_view text = self.Text();
  if (is_prefix && text.starts_with(*part)) text.remove_prefix(part->size());
  if (!is_prefix && text.ends_with(*part)) text.remove_suffix(part->size());
  return Like(run, self, text);
}

Value Join(Run& run, const Value& self, const Arguments& arguments) {
  Value iterable;
  if (!Bind(run, "join", arguments, {""}, 1, &iterable)) return None{};
  const bool escapes = self.String().safe;
  std::string out;
  const auto items = Iterate(run, iterable);
  for (size_t i = 0; i < items->values.size(); ++i) {
    const Value& item = items->values[i];
    if (!item.IsString() && !escapes) {
      return run.Fail(
          fmt::format("sequence item {}: expected str instance, {} found", i, TypeName(item)));
    }
    const Value part = escapes ? Escape(run, item) : item;
    if (run.failed() || !run.SpendText(part.Text().size() + self.Text().size()) ||
        !run.MayAllocate(out.size() + part.Text().size() + self.Text().size())) {
      return None{};
    }
    if (i > 0) out += self.Text();
    out += part.Text();
  }
  return Like(run, self, out);
}

template <char align>
Value Justify(Run& run, const Value& self, const Arguments& arguments) {
  Value bound[2];
  if (!Bind(run, "justify", arguments, {"", ""}, 1, bound)) return None{};
  FormatSpec spec;
  spec.width = ToInteger(run, bound[0]).value_or(0);
  spec.align = align;
  if (!bound[1].IsMissing()) {
    if (self.String().safe) bound[1] = Escape(run, bound[1]);
    const std::string* fill = ToText(run, bound[1]);
    if (fill == nullptr) return None{};
    if (Length(*fill) != 1) {
      return run.Fail("The fill character must be exactly one character long");
    }
    size_t pos = 0;
    spec.fill = ReadCodePoint(*fill, &pos);
  }
  if (run.failed()) return None{};
  if (align == '^') {
    // Python's center() puts an odd space to the left where the width is odd, format() to the
    // right.
    const auto missing = spec.width - static_cast<int64_t>(Length(self.Text()));
    if (missing > 0 && (missing & spec.width & 1) != 0) {
      FormatSpec left = spec;
      left.align = '>';
      left.width = spec.width - missing / 2;
      spec.align = '<';
      return Like(run, self, Pad(run, Pad(run, self.Text(), left, '>'), spec, '<'));
    }
  }
  return Like(run, self, Pad(run, self.Text(), spec, align));
}

Value ZeroFill(Run& run, const Value& self, const Arguments& arguments) {
  Value width;
  if (!Bind(run, "zfill", arguments, {""}, 1, &width)) return None{};
  FormatSpec spec;
  spec.width = ToInteger(run, width).value_or(0);
  spec.fill = '0';
  const std::string& text = self.Text();
  const bool has_sign = text.starts_with('+') || text.starts_with('-');
  const std::string_view digits = std::string_view(text).substr(has_sign ? 1 : 0);
  spec.width -= has_sign ? 1 : 0;
  return Like(run, self, (has_sign ? text.substr(0, 1) : "") + Pad(run, digits, spec, '>'));
}

Value ExpandTabs(Run& run, const Value& self, const Arguments& arguments) {
  Value tab_size;
  if (!Bind(run, "expandtabs", arguments, {"tabsize"}, 0, &tab_size)) return None{};
  const int64_t size = tab_size.IsMissing() ? 8 : ToInteger(run, tab_size).value_or(0);
  std::string out;
  int64_t column = 0;
  const std::string& text = self.Text();
  for (size_t pos = 0; pos < text.size() && !run.failed();) {
    const char32_t c = ReadCodePoint(text, &pos);
    if (c == '\t') {
      const int64_t num_spaces = size > 0 ? size - column % size : 0;
      if (!run.MayAllocate(static_cast<size_t>(num_spaces)) ||
          !run.SpendText(static_cast<size_t>(num_spaces))) {
        return None{};
      }
      out.append(static_cast<size_t>(num_spaces), ' ');
      column += num_spaces;
    } else {
      AppendUtf8(c, &out);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    if ((pos & 0xFFFF) == 0 && !run.MayAllocate(out.size())) return None{};
  }
  return Like(run, self, out);
}

Value FormatMap(Run& run, const Value& self, const Arguments& arguments) {
  Value mapping;
  if (!Bind(run, "format_map", arguments, {""}, 1, &mapping)) return None{};
  if (!mapping.Is(Kind::kDict)) return run.Fail("format_map() is supported for a dict only");
  Arguments named;
  for (const auto& [key, value] : mapping.AsDict().entries) {
    if (key.IsString()) named.named.emplace_back(key.Text(), value);
  }
  return BraceFormat(run, self, named);
}

constexpr MethodEntry kStringMethods[] = {
    {"capitalize", Transformed<Capitalize>},
    {"casefold", Transformed<CaseFold>},
    {"center", Justify<'^'>},
    {"encode", nullptr},
    {"expandtabs", ExpandTabs},
    {"format", BraceFormat},
    {"format_map", FormatMap},
    {"join", Join},
    {"ljust", Justify<'<'>},
    {"lower", Transformed<ToLower>},
    {"lstrip", Strip<Side::kLeft>},
    {"maketrans", nullptr},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", Replace},
    {"rjust", Justify<'>'>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<Side::kRight>},
    {"split", Split<false>},
    {"splitlines", Lines},
    {"strip", Strip<Side::kBoth>},
    {"swapcase", Transformed<SwapCase>},
    {"title", Transformed<ToTitle>},
    {"translate", nullptr},
    {"upper", Transformed<ToUpper>},
    {"zfill", ZeroFill},
};

}  // namespace

std::span<const MethodEntry> StringMethods() { return kStringMethods; }

}  // namespace convene::text::jinja
