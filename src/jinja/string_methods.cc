// Methods of str that make other strings. Where the string is marked safe, so is the result, and
// text that comes in is escaped (Python's Markup).
#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "jinja/arguments.h"
#include "jinja/brace_format.h"
#include "jinja/builtins.h"
#include "jinja/escape.h"
#include "jinja/format_spec.h"
#include "jinja/python_text.h"
#include "jinja/replace.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

// A string of the same safety as `self`.
Value Like(Run& run, const Value& self, std::string_view text) {
  return run.String(std::string(text), self.String().safe);
}

template <std::string (*Transform)(std::string_view)>
Value Transformed(Run& run, const Value& self) {
  if (!run.SpendText(self.Text().size())) return {};
  return Like(run, self, Transform(self.Text()));
}

enum class Side { kLeft, kRight, kBoth };

template <Side side>
Value Strip(Run& run, const Value& self, Bound& bound) {
  const bool has_set = IsGiven(bound[0]);
  const std::string* set_text = has_set ? ToText(run, bound[0]) : nullptr;
  if (run.failed() || !run.SpendText(self.Text().size() + (set_text ? set_text->size() : 0))) {
    return None{};
  }
  const CharacterSet set(set_text ? *set_text : "");
  std::string_view text = self.Text();
  if (side != Side::kRight) text = StripLeft(text, set_text ? &set : nullptr);
  if (side != Side::kLeft) text = StripRight(text, set_text ? &set : nullptr);
  return Like(run, self, text);
}

// Collects the parts of a split. Each becomes a value at once, so that the limits hold meanwhile.
class Parts {
 public:
  Parts(Run& run, const Value& self, int64_t max_splits)
      : run_(run), self_(self), max_splits_(max_splits) {}
  void Add(std::string_view part) { values_.push_back(Like(run_, self_, part)); }
  bool MaySplit() const {
    return !run_.failed() &&
           (max_splits_ < 0 || static_cast<int64_t>(values_.size()) < max_splits_);
  }
  Value Take(bool is_reversed) {
    if (is_reversed) std::reverse(values_.begin(), values_.end());
    return run_.NewList(std::move(values_));
  }

 private:
  Run& run_;
  const Value& self_;
  int64_t max_splits_;
  Values values_;
};

// Runs of text between whitespace. The last part is the rest as it is, but for the space before it.
void SplitAtSpace(std::string_view text, Parts& parts) {
  for (text = StripLeft(text); !text.empty(); text = StripLeft(text)) {
    if (!parts.MaySplit()) return parts.Add(text);
    size_t end = 0;
    for (size_t next = 0; next < text.size(); end = next) {
      if (IsSpace(ReadCodePoint(text, &next))) break;
    }
    parts.Add(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// The same from the right; adds the last part first.
void SplitAtSpaceFromRight(std::string_view text, Parts& parts) {
  for (text = StripRight(text); !text.empty(); text = StripRight(text)) {
    if (!parts.MaySplit()) return parts.Add(text);
    size_t begin = text.size();
    while (begin > 0) {
      const size_t previous = PreviousCharacter(text, begin);
      size_t pos = previous;
      if (IsSpace(ReadCodePoint(text, &pos))) break;
      begin = previous;
    }
    parts.Add(text.substr(begin));
    text = text.substr(0, begin);
  }
}

void SplitAt(std::string_view text, std::string_view separator, Parts& parts) {
  size_t begin = 0;
  while (parts.MaySplit()) {
    const size_t found = FindFirst(text, separator, begin);
    if (found == std::string_view::npos) break;
    parts.Add(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  parts.Add(text.substr(begin));
}

// The same from the right; adds the last part first. Searches backwards, so that overlapping
// separators are found from the right.
void SplitAtFromRight(std::string_view text, std::string_view separator, Parts& parts) {
  const std::string reversed(text.rbegin(), text.rend());
  const std::string reversed_separator(separator.rbegin(), separator.rend());
  size_t end = text.size();
  while (parts.MaySplit()) {
    const size_t found = FindFirst(reversed, reversed_separator, text.size() - end);
    if (found == std::string_view::npos) break;
    const size_t begin = text.size() - found;
    parts.Add(text.substr(begin, end - begin));
    end = begin - separator.size();
  }
  parts.Add(text.substr(0, end));
}

template <bool from_right>
Value Split(Run& run, const Value& self, Bound& bound) {
  const int64_t max_splits = IntegerOr(run, bound[1], -1);
  const bool has_separator = IsGiven(bound[0]);
  const std::string* separator = has_separator ? ToText(run, bound[0]) : nullptr;
  if (run.failed() || !run.SpendText(self.Text().size())) return None{};
  Parts parts(run, self, max_splits);
  if (separator == nullptr) {
    from_right ? SplitAtSpaceFromRight(self.Text(), parts) : SplitAtSpace(self.Text(), parts);
  } else if (separator->empty()) {
    return run.Fail("empty separator");
  } else {
    from_right ? SplitAtFromRight(self.Text(), *separator, parts)
               : SplitAt(self.Text(), *separator, parts);
  }
  return parts.Take(/*is_reversed=*/from_right);
}

Value Lines(Run& run, const Value& self, Bound& bound) {
  if (!run.SpendText(self.Text().size())) return None{};
  Parts parts(run, self, -1);
  for (std::string_view rest = self.Text(); !rest.empty() && parts.MaySplit();) {
    parts.Add(TakeLine(&rest, IsTrueOr(bound[0], false)));
  }
  return parts.Take(/*is_reversed=*/false);
}

template <bool from_right>
Value Partition(Run& run, const Value& self, Bound& bound) {
  const std::string* part = ToText(run, bound[0]);
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

Value Replace(Run& run, const Value& self, Bound& bound) {
  const std::string* old_part = ToText(run, bound[0]);
  if (self.String().safe) bound[1] = Escape(run, bound[1]);
  const std::string* new_part = ToText(run, bound[1]);
  const int64_t max_count = IntegerOr(run, bound[2], -1);
  if (run.failed()) return None{};
  return Like(run, self, ReplaceText(run, self.Text(), *old_part, *new_part, max_count));
}

template <bool is_prefix>
Value RemoveAffix(Run& run, const Value& self, Bound& bound) {
  const std::string* part = ToText(run, bound[0]);
  if (part == nullptr) return None{};
  std::string_view text = self.Text();
  if (is_prefix && text.starts_with(*part)) text.remove_prefix(part->size());
  if (!is_prefix && text.ends_with(*part)) text.remove_suffix(part->size());
  return Like(run, self, text);
}

Value Join(Run& run, const Value& self, Bound& bound) {
  const bool escapes = self.String().safe;
  std::string out;
  const auto items = Iterate(run, bound[0]);
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
Value Justify(Run& run, const Value& self, Bound& bound) {
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

Value ZeroFill(Run& run, const Value& self, Bound& bound) {
  FormatSpec spec;
  spec.width = ToInteger(run, bound[0]).value_or(0);
  spec.fill = '0';
  const std::string& text = self.Text();
  const bool has_sign = text.starts_with('+') || text.starts_with('-');
  const std::string_view digits = std::string_view(text).substr(has_sign ? 1 : 0);
  spec.width -= has_sign ? 1 : 0;
  return Like(run, self, (has_sign ? text.substr(0, 1) : "") + Pad(run, digits, spec, '>'));
}

Value ExpandTabs(Run& run, const Value& self, Bound& bound) {
  const int64_t size = IntegerOr(run, bound[0], 8);
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

Value FormatMap(Run& run, const Value& self, Bound& bound) {
  if (!bound[0].Is(Kind::kDict)) return run.Fail("format_map() is supported for a dict only");
  Arguments named;
  for (const auto& [key, value] : bound[0].AsDict().entries) {
    if (key.IsString()) named.named.emplace_back(key.Text(), value);
  }
  return BraceFormat(run, self, named);
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", Transformed<Capitalize>},
    {"casefold", Transformed<CaseFold>},
    {"center", Justify<'^'>, {"", ""}, 1},
    {"encode", nullptr},
    {"expandtabs", ExpandTabs, {"tabsize"}},
    {"format", BraceFormat},
    {"format_map", FormatMap, {""}, 1},
    {"join", Join, {""}, 1},
    {"ljust", Justify<'<'>, {"", ""}, 1},
    {"lower", Transformed<ToLower>},
    {"lstrip", Strip<Side::kLeft>, {""}},
    {"maketrans", nullptr},
    {"partition", Partition<false>, {""}, 1},
    {"removeprefix", RemoveAffix<true>, {""}, 1},
    {"removesuffix", RemoveAffix<false>, {""}, 1},
    {"replace", Replace, {"", "", ""}, 2},
    {"rjust", Justify<'>'>, {"", ""}, 1},
    {"rpartition", Partition<true>, {""}, 1},
    {"rsplit", Split<true>, {"sep", "maxsplit"}},
    {"rstrip", Strip<Side::kRight>, {""}},
    {"split", Split<false>, {"sep", "maxsplit"}},
    {"splitlines", Lines, {"keepends"}},
    {"strip", Strip<Side::kBoth>, {""}},
    {"swapcase", Transformed<SwapCase>},
    {"title", Transformed<ToTitle>},
    {"translate", nullptr},
    {"upper", Transformed<ToUpper>},
    {"zfill", ZeroFill, {""}, 1},
};

}  // namespace

std::span<const Builtin> StringMethods() { return kStringMethods; }

}  // namespace convene::jinja
