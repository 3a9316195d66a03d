// What a regular expression written for the Hugging Face tokenizers package needs so that this
// machine's older Oniguruma answers as the package's does. It compiles and matches nothing
// (regex.h).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/unicode_tables.h"

namespace convene::text {

// The pattern with [:punct:] spelt out: to the package it has all symbols, here only some.
std::string WithPackageClasses(std::string_view pattern);

// The code points beyond ASCII that the pattern (valid UTF-8) writes out, single or as ranges; in
// its order.
std::vector<CodePointRange> ExplicitRanges(std::string_view pattern);

// Stand-ins for code points whose usual one (RegexStandIn) lies in other explicit ranges of the
// pattern than they do themselves. A code point for which there is no other keeps the usual one.
std::unordered_map<char32_t, char32_t> StandInsBeside(std::string_view pattern);

}  // namespace convene::text
