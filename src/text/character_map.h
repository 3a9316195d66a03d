// The replacements of characters that SentencePiece models carry with them ("precompiled
// charsmap"): a double-array trie of what is replaced, and the replacements. Which parts of a text
// are looked up, the normalizer decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::text {

class CharacterMap {
 public:
  // `bytes`: the size of the trie in bytes (uint32, little endian), its units (uint32 each), and
  // replacements, each ended by a zero byte. Errors: sizes that do not fit, replacements that are
  // no UTF-8.
  static Result<CharacterMap> Create(std::string_view bytes);

  // The replacement of the shortest beginning of `text` that has one, in UTF-8; a view into this
  // object. A damaged trie finds nothing.
  std::optional<std::string_view> Find(std::string_view text) const;

 private:
  CharacterMap(std::vector<uint32_t> units, std::string replacements)
      : units_(std::move(units)), replacements_(std::move(replacements)) {}

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace convene::text
