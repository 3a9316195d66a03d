// Any bytes as the character map of a SentencePiece normalizer: refused, or what is found in it is
// valid text. In a tokenizer.json it stands in base64, through which no change of bytes leads.
//
// The first byte of an input says how many behind it are the text to look up; the rest is the map.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/base64.h"
#include "text/character_map.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace text = convene::text;
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  // As base64 the same bytes are another input, which is refused or gives whole bytes.
  const auto bytes = text::DecodeBase64(input);
  if (bytes) {
    CHECK(input.size() % 4 == 0 && bytes->size() <= input.size() / 4 * 3 &&
          bytes->size() + 2 >= input.size() / 4 * 3);
  }
  const size_t num_looked_up = std::min<size_t>(data[0], input.size());
  const auto map = text::CharacterMap::Create(input.substr(num_looked_up));
  if (!map) return 0;
  // Of its exact size, so that a read behind it is seen.
  const std::string looked_up(input.substr(0, num_looked_up));
  for (size_t begin = 0; begin <= looked_up.size(); ++begin) {
    const auto found = map->Find(std::string_view(looked_up).substr(begin));
    if (found) CHECK(convene::ValidUtf8Prefix(*found) == found->size());
  }
  return 0;
}
