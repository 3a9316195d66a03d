// Where the Unicode data of Debian 12's Oniguruma (14) and utf8proc (15) differ from those of the
// Hugging Face tokenizers package. Only tables; code_points.h and regex.h apply them.
#pragma once

#include <span>

namespace convene::text {

struct CodePointRange {
  char32_t first;
  char32_t last;  // inclusive
};

// The package's regular expressions treat first..last as ours treat `proxy`, a code point of the
// same UTF-8 length.
struct StandIn {
  char32_t first;
  char32_t last;
  char32_t proxy;
};

struct LowerCase {
  char32_t letter;
  char32_t lower;
};

// All sorted by code point.
std::span<const StandIn> StandIns();
// The same for grapheme clusters and utf8proc; there the lengths may differ.
std::span<const StandIn> GraphemeStandIns();
// To the package's normalization forms these neither decompose, compose nor reorder.
std::span<const CodePointRange> NormalizationBarriers();
// Exceptions to the general categories of utf8proc: more numbers (N), punctuation (P) and marks (M)
// for the package, or fewer.
std::span<const CodePointRange> MoreNumbers();
std::span<const CodePointRange> MorePunctuation();
std::span<const CodePointRange> NoPunctuation();
std::span<const CodePointRange> MoreMarks();
std::span<const CodePointRange> NoMarks();
std::span<const LowerCase> LowerCases();

}  // namespace convene::text
