// Cuts normalized text into the words that the model sees, and spells them as its vocabulary does.
// It knows no tokens.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/pieces.h"
#include "text/regex.h"

namespace convene::text {

// A property of code points, as in code_points.h.
using CodePointTest = bool (*)(char32_t);

// What becomes of the matches, between which the text is cut.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // isolated, neighbouring matches together
};

struct Split {
  std::variant<Pattern, CodePointTest> pattern;  // a CodePointTest matches single characters
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // matches are what the pattern does not match
};

// Puts `prefix` before pieces that do not begin with it.
struct PrefixPieces {
  std::string prefix;
  bool only_first = false;  // only before the piece at the very beginning of the original text
};

// Puts `replacement` in the place of every space.
struct ReplaceSpaces {
  std::string replacement;
};

// Byte-level spelling (byte_level.h).
struct SpellPieces {};

using PreTokenizerStep = std::variant<Split, PrefixPieces, ReplaceSpaces, SpellPieces>;

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // Cuts and rewrites the pieces that are no tokens yet. Errors: a regular expression gives up,
  // the text grows too much.
  Status Apply(Pieces* pieces) const;

 private:
  std::vector<PreTokenizerStep> steps_;  // in order
};

}  // namespace convene::text
