#include "text/code_points.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace convene::text {
namespace {

// The entry of `table` (sorted by `first`, disjoint) that holds `code_point`, or null.
template <typename Range>
const Range* FindRange(char32_t code_point, std::span<const Range> table) {
  const auto above = std::upper_bound(table.begin(), table.end(), code_point,
                                      [](char32_t c, const Range& r) { return c < r.first; });
  if (above == table.begin()) return nullptr;
  const Range& candidate = *(above - 1);
  return code_point <= candidate.last ? &candidate : nullptr;
}

bool IsCategory(char32_t code_point, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category >= first && category <= last;
}

}  // namespace

bool IsInRanges(char32_t code_point, std::span<const CodePointRange> ranges) {
  return FindRange(code_point, ranges) != nullptr;
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) {
  return IsCategory(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO) || IsInRanges(c, MoreNumbers());
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80)
    return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
           (c > 'z' && c < 0x7f);
  return (IsCategory(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) &&
          !IsInRanges(c, NoPunctuation())) ||
         IsInRanges(c, MorePunctuation());
}

bool IsMark(char32_t c) {
  return (IsCategory(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME) && !IsInRanges(c, NoMarks())) ||
         IsInRanges(c, MoreMarks());
}

size_t SkipSpaceForward(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t at = begin;
    if (!IsWhitespace(ReadCodePoint(text, &at))) break;
    begin = at;
  }
  return begin;
}

size_t SkipSpaceBackward(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t begin = PreviousCharacter(text, end);
    size_t at = begin;
    if (!IsWhitespace(ReadCodePoint(text, &at))) break;
    end = begin;
  }
  return end;
}

void AppendLowerCase(char32_t c, std::string* text) {
  if (c == 0x130) {  // the only letter whose lower case is two code points
    text->append("i\xcc\x87");
    return;
  }
  const auto table = LowerCases();
  const auto entry = std::lower_bound(table.begin(), table.end(), c,
                                      [](const LowerCase& l, char32_t d) { return l.letter < d; });
  if (entry != table.end() && entry->letter == c) {
    AppendUtf8(entry->lower, text);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
  }
}

char32_t GraphemeStandIn(char32_t c) {
  if (c < GraphemeStandIns().front().first) return c;
  const StandIn* entry = FindRange(c, GraphemeStandIns());
  return entry == nullptr ? c : entry->proxy;
}

char32_t RegexStandIn(char32_t c) {
  if (c < StandIns().front().first) return c;
  const StandIn* entry = FindRange(c, StandIns());
  return entry == nullptr ? c : entry->proxy;
}

}  // namespace convene::text
