#include "jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "jinja/case_tables.h"

namespace convene::jinja {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsLetter(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsAsciiText(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

void AppendLower(std::string& out, char32_t c) {
  if (c == 0x130) {
    out += "i\xCC\x87";  // the only character whose lower case is two
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
  }
}

void AppendUpper(std::string& out, char32_t c) {
  if (const std::string special = SpecialUpper(c); !special.empty()) {
    out += special;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), &out);
  }
}

void AppendTitle(std::string& out, char32_t c) {
  if (const std::string_view special = SpecialTitle(c); !special.empty()) {
    out += special;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), &out);
  }
}

bool IsCased(char32_t c) { return IsLower(c) || IsUpper(c) || IsTitle(c); }

// Unicode's Case_Ignorable: marks, and punctuation within words.
bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  static constexpr char32_t kWithinWords[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,
                                              0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                              0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(std::begin(kWithinWords), std::end(kWithinWords), c) != std::end(kWithinWords);
}

constexpr char32_t kCapitalSigma = 0x3A3, kSigma = 0x3C3, kFinalSigma = 0x3C2;

// Whether the capital sigma that ends at byte `end` stands at the end of a word. `after_cased`: the
// nearest character before it that is not ignorable is cased.
bool IsFinalSigma(std::string_view text, size_t end, bool after_cased) {
  if (!after_cased) return false;
  while (end < text.size()) {
    const char32_t c = ReadCodePoint(text, &end);
    if (!IsCaseIgnorable(c)) return !IsCased(c);
  }
  return true;
}

// `first` appends the first character (null: as the others).
std::string LowerAllBut(std::string_view text, void (*first)(std::string&, char32_t)) {
  std::string out;
  out.reserve(text.size());
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const bool is_first = pos == 0;
    const char32_t c = ReadCodePoint(text, &pos);
    if (is_first && first != nullptr) {
      first(out, c);
    } else if (c == kCapitalSigma) {
      AppendUtf8(IsFinalSigma(text, pos, after_cased) ? kFinalSigma : kSigma, &out);
    } else {
      AppendLower(out, c);
    }
    if (!IsCaseIgnorable(c)) after_cased = IsCased(c);
  }
  return out;
}

}  // namespace

size_t Length(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation byte
  }));
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t pos = 0;
  while (index > 0 && pos < text.size()) {
    ReadCodePoint(text, &pos);
    --index;
  }
  return pos;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsPrintable(char32_t c) {
  // The categories of spaces, line breaks, controls and the like are the last ones.
  const utf8proc_category_t category = Category(c);
  return c == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

bool IsAlpha(char32_t c) { return IsLetter(Category(c)); }
bool IsAlphaNumeric(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsLetter(category) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}
bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }
bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL || IsOtherLowercase(c); }
bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU || IsOtherUppercase(c); }
bool IsTitle(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }

bool IsIdentifierStart(char32_t c) {
  return c == '_' || IsAlpha(c) || Category(c) == UTF8PROC_CATEGORY_NL;
}

bool IsIdentifierPart(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsIdentifierStart(c) || category == UTF8PROC_CATEGORY_MN ||
         category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_PC;
}

bool IsLineBreak(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::string ToUpper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (IsAsciiText(text)) {
    for (const char c : text) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    return out;
  }
  for (size_t pos = 0; pos < text.size();) AppendUpper(out, ReadCodePoint(text, &pos));
  return out;
}

std::string ToLower(std::string_view text) { return LowerAllBut(text, nullptr); }
std::string Capitalize(std::string_view text) { return LowerAllBut(text, AppendTitle); }

std::string ToTitle(std::string_view text) {
  std::string out;
  bool after_cased = false, after_cased_or_ignorable = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = ReadCodePoint(text, &pos);
    if (!after_cased) {
      AppendTitle(out, c);
    } else if (c == kCapitalSigma) {
      AppendUtf8(IsFinalSigma(text, pos, after_cased_or_ignorable) ? kFinalSigma : kSigma, &out);
    } else {
      AppendLower(out, c);
    }
    after_cased = IsCased(c);
    if (!IsCaseIgnorable(c)) after_cased_or_ignorable = after_cased;
  }
  return out;
}

std::string SwapCase(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = ReadCodePoint(text, &pos);
    if (c == kCapitalSigma) {
      AppendUtf8(IsFinalSigma(text, pos, after_cased) ? kFinalSigma : kSigma, &out);
    } else if (IsUpper(c)) {
      AppendLower(out, c);
    } else if (IsLower(c)) {
      AppendUpper(out, c);
    } else {
      AppendUtf8(c, &out);
    }
    if (!IsCaseIgnorable(c)) after_cased = IsCased(c);
  }
  return out;
}

std::string CaseFold(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = ReadCodePoint(text, &pos);
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8,
                                               UTF8PROC_CASEFOLD, &boundary);
    for (int i = 0; i < count && i < 8; ++i) AppendUtf8(static_cast<char32_t>(folded[i]), &out);
  }
  return out;
}

CharacterSet::CharacterSet(std::string_view characters) {
  for (size_t pos = 0; pos < characters.size();) sorted_.push_back(ReadCodePoint(characters, &pos));
  std::sort(sorted_.begin(), sorted_.end());
}

bool CharacterSet::Contains(char32_t c) const { return std::ranges::binary_search(sorted_, c); }

std::string_view StripLeft(std::string_view text, const CharacterSet* set) {
  size_t start = 0;
  while (start < text.size()) {
    size_t next = start;
    const char32_t c = ReadCodePoint(text, &next);
    if (!(set == nullptr ? IsSpace(c) : set->Contains(c))) break;
    start = next;
  }
  return text.substr(start);
}

std::string_view StripRight(std::string_view text, const CharacterSet* set) {
  while (!text.empty()) {
    const size_t start = PreviousCharacter(text, text.size());
    size_t next = start;
    const char32_t c = ReadCodePoint(text, &next);
    if (!(set == nullptr ? IsSpace(c) : set->Contains(c))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::string_view TakeLine(std::string_view* rest, bool keeps_break) {
  const std::string_view text = *rest;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = ReadCodePoint(text, &pos);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    rest->remove_prefix(pos);
    return text.substr(0, keeps_break ? pos : end);
  }
  *rest = {};
  return text;
}

size_t FindFirst(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  // glibc's memmem is two-way: linear where std::string_view::find may be quadratic.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLast(std::string_view text, std::string_view part) {
  const std::string reversed_text(text.rbegin(), text.rend());
  const std::string reversed_part(part.rbegin(), part.rend());
  const size_t found = FindFirst(reversed_text, reversed_part);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

}  // namespace convene::jinja
