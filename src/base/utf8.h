// UTF-8 and code points: validation, reading, writing. What a code point is (letter, digit, space)
// is text/code_points.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace convene {

// U+FFFD, what stands for bytes that are no UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

enum class Utf8Kind : uint8_t {
  kCharacter,  // a well-formed character
  kMalformed,  // bytes that can begin no character
  kCut,        // the beginning of a character that the text ends in
};

// `length` >= 1 bytes. Of malformed text it is the maximal subpart that the Unicode standard
// replaces by one U+FFFD.
struct Utf8Unit {
  Utf8Kind kind;
  size_t length;
};

// The unit at the start of `bytes`, which must not be empty.
Utf8Unit NextUtf8(std::string_view bytes);

// How many bytes at the start of `bytes` are well-formed UTF-8; bytes.size() if all are.
size_t ValidUtf8Prefix(std::string_view bytes);

// The code point at `*at`, which moves behind it. Precondition: valid UTF-8, *at < text.size().
char32_t ReadCodePoint(std::string_view text, size_t* at);

// Where the character before `end` begins. Precondition: valid UTF-8, end > 0.
size_t PreviousCharacter(std::string_view text, size_t end);

// Precondition: a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* text);

}  // namespace convene
