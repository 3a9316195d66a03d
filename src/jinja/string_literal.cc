#include "jinja/string_literal.h"

#include <fmt/format.h>

#include <charconv>

#include "base/utf8.h"

namespace convene::jinja {
namespace {

// Jinja writes other characters as escapes before it resolves all escapes, so that a backslash
// before an é meets the backslash of \xe9.
std::string EscapeNonAscii(std::string_view text) {
  std::string ascii;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = ReadCodePoint(text, &pos);
    if (c < 0x80) {
      ascii += static_cast<char>(c);
    } else {
      const auto code = static_cast<uint32_t>(c);
      ascii += code < 0x100     ? fmt::format("\\x{:02x}", code)
               : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                : fmt::format("\\U{:08x}", code);
    }
  }
  return ascii;
}

// The character of a one-letter escape, or 0.
char SimpleEscape(char letter) {
  switch (letter) {
    case '\\':
    case '\'':
    case '"':
      return letter;
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'v':
      return '\v';
    default:
      return '\0';
  }
}

// Reads between 1 and `max_digits` digits at `*pos` (exactly `max_digits` in base 16).
Result<char32_t> CodePoint(std::string_view text, size_t* pos, size_t max_digits, int base) {
  uint32_t code = 0;
  const char* begin = text.data() + *pos;
  const char* end = begin + std::min(max_digits, text.size() - *pos);
  const auto parsed = std::from_chars(begin, end, code, base);
  const auto num_digits = static_cast<size_t>(parsed.ptr - begin);
  if (parsed.ec != std::errc() || (base == 16 && num_digits != max_digits)) {
    return Error{
        fmt::format("a string has an escape with fewer than {} hexadecimal digits", max_digits)};
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    return Error{fmt::format("a string has an escape of U+{:X}, which is no character", code)};
  }
  *pos += num_digits;
  return static_cast<char32_t>(code);
}

}  // namespace

Result<std::string> UnescapeStringLiteral(std::string_view literal) {
  if (literal.find('\\') == std::string_view::npos) return std::string(literal);
  const std::string ascii = EscapeNonAscii(literal);
  std::string text;
  for (size_t pos = 0; pos < ascii.size();) {
    const char c = ascii[pos++];
    if (c != '\\' || pos == ascii.size()) {
      text += c;
      continue;
    }
    const char letter = ascii[pos];
    if (letter == '\n') {
      ++pos;  // a line that goes on
    } else if (const char simple = SimpleEscape(letter); simple != '\0') {
      text += simple;
      ++pos;
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      ++pos;
      const Result<char32_t> code = CodePoint(ascii, &pos,
                                              letter == 'x'   ? 2
                                              : letter == 'u' ? 4
                                                              : 8,
                                              16);
      if (!code) return code.error();
      AppendUtf8(*code, &text);
    } else if (letter >= '0' && letter <= '7') {
      const Result<char32_t> code = CodePoint(ascii, &pos, 3, 8);
      if (!code) return code.error();
      AppendUtf8(*code, &text);
    } else if (letter == 'N') {
      return Error{"a string has an escape \\N{...} (a character by name), which is not supported"};
    } else {
      text += '\\';  // what is no escape stays as it is
    }
  }
  return text;
}

}  // namespace convene::jinja
