// What code points are to the Hugging Face tokenizers package, which mixes Unicode versions. Not
// for linguistics.
#pragma once

#include <string>
#include <string_view>

#include "text/unicode_tables.h"

namespace convene::text {

bool IsWhitespace(char32_t code_point);   // property White_Space
bool IsNumeric(char32_t code_point);      // general category N
bool IsPunctuation(char32_t code_point);  // P, and all ASCII signs
bool IsMark(char32_t code_point);         // M

// Where the white space from `begin` on ends, and where that before `end` begins.
size_t SkipSpaceForward(std::string_view text, size_t begin);
size_t SkipSpaceBackward(std::string_view text, size_t end);

// Appends the lower case in UTF-8; two code points for U+0130.
void AppendLowerCase(char32_t code_point, std::string* text);

bool IsInRanges(char32_t code_point, std::span<const CodePointRange> ranges);

// What the rules of grapheme clusters should see in place of `code_point`; itself, for most.
char32_t GraphemeStandIn(char32_t code_point);

// What regular expressions should see in place of `code_point`; itself, for most.
char32_t RegexStandIn(char32_t code_point);

}  // namespace convene::text
