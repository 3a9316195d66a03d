// Rewrites text before it is cut: Unicode forms, replacements, prefixes. Not the spelling of bytes
// for the model, which is the pre-tokenizer's, except where a tokenizer puts it here.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/character_map.h"
#include "text/regex.h"

namespace convene::text {

// The steps are those of the Hugging Face tokenizers package, by its names.
enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
struct Lowercase {};
struct StripAccents {};  // removes marks; the accents of composed letters stay
struct Strip {
  bool left;
  bool right;
};
struct Replace {
  Pattern pattern;
  std::string content;
};
struct Prepend {
  std::string prefix;
};
struct SpellBytes {};   // "ByteLevel"
struct MapCharacters {  // "Precompiled"
  CharacterMap map;
};

using NormalizerStep = std::variant<UnicodeForm, Lowercase, StripAccents, Strip, Replace, Prepend,
                                    SpellBytes, MapCharacters>;

// A text and how many of its first bytes come from the original's first byte (see pieces.h).
struct NormalizedText {
  std::string text;
  size_t num_origin_bytes = 0;
};

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // Rewrites `text`, valid UTF-8. Errors: a regular expression gives up, the text grows too much.
  Status Apply(NormalizedText* text) const;

 private:
  std::vector<NormalizerStep> steps_;  // in order
};

}  // namespace convene::text
