// What Python knows about characters and utf8proc does not offer: Unicode 14 data as tables.
// Simple case mappings and categories come from utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace convene::jinja {

// The mapping to several characters (as UTF-8), empty where there is none.
std::string SpecialUpper(char32_t c);
std::string_view SpecialTitle(char32_t c);

// Characters with the property Lowercase (Uppercase) outside the category Ll (Lu).
bool IsOtherLowercase(char32_t c);
bool IsOtherUppercase(char32_t c);

// Characters that stand for a digit without being decimal digits, such as superscripts.
bool IsOtherDigit(char32_t c);

}  // namespace convene::jinja
