// Text as Python's str sees it: lengths in code points, whitespace, case, searching. Functions that
// take text expect valid UTF-8. How UTF-8 is read and written is base/utf8.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace convene::jinja {

// Number of code points: Python's len().
size_t Length(std::string_view text);
// The byte at which code point `index` starts; text.size() where there are fewer.
size_t ByteOffset(std::string_view text, size_t index);

bool IsSpace(char32_t c);
bool IsPrintable(char32_t c);
bool IsAlpha(char32_t c);
bool IsAlphaNumeric(char32_t c);
bool IsDecimal(char32_t c);
bool IsLower(char32_t c);
bool IsUpper(char32_t c);
bool IsTitle(char32_t c);
// Whether the character may start (continue) an identifier.
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);
bool IsLineBreak(char32_t c);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
// The first character in title case, the others in lower case.
std::string Capitalize(std::string_view text);
// Python's str.title(): every run of letters capitalised.
std::string ToTitle(std::string_view text);
std::string SwapCase(std::string_view text);
std::string CaseFold(std::string_view text);

class CharacterSet {
 public:
  explicit CharacterSet(std::string_view characters);
  bool Contains(char32_t c) const;

 private:
  std::vector<char32_t> sorted_;
};

// Without leading (trailing) characters of the set, or without whitespace where it is null.
std::string_view StripLeft(std::string_view text, const CharacterSet* set = nullptr);
std::string_view StripRight(std::string_view text, const CharacterSet* set = nullptr);

// Takes the first line off `*rest`, which must not be empty, with or without its line break.
std::string_view TakeLine(std::string_view* rest, bool keeps_break = false);

// Like text.find(part, from) and text.rfind(part), in time linear in the text for any input.
size_t FindFirst(std::string_view text, std::string_view part, size_t from = 0);
size_t FindLast(std::string_view text, std::string_view part);

}  // namespace convene::jinja
