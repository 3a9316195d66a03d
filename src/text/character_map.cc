#include "text/character_map.h"

#include "base/utf8.h"

namespace convene::text {
namespace {

// A unit of the trie, as the library darts-clone lays it out: the byte that leads to it, how far
// its children are (by exclusive or), and whether a value ends here, which is then the first child.
uint32_t LabelOf(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xff); }
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & ((uint32_t{1} << 31) - 1); }
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & uint32_t{1} << 9) >> 6); }

uint32_t ReadUint32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

}  // namespace

Result<CharacterMap> CharacterMap::Create(std::string_view bytes) {
  if (bytes.size() < 4) {
    return Error{fmt::format("the character map has {} bytes, too few for its size", bytes.size())};
  }
  const size_t trie_bytes = ReadUint32(bytes, 0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - 4) {
    return Error{fmt::format("the character map has {} bytes, but says that its trie has {}",
                             bytes.size(), trie_bytes)};
  }
  std::vector<uint32_t> units;
  units.reserve(trie_bytes / 4);
  for (size_t at = 4; at < 4 + trie_bytes; at += 4) units.push_back(ReadUint32(bytes, at));
  const std::string_view replacements = bytes.substr(4 + trie_bytes);
  if (ValidUtf8Prefix(replacements) != replacements.size()) {
    return Error{"the replacements of the character map are not valid UTF-8"};
  }
  return CharacterMap(std::move(units), std::string(replacements));
}

std::optional<std::string_view> CharacterMap::Find(std::string_view text) const {
  size_t at = OffsetOf(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || LabelOf(units_[at]) != byte) return std::nullopt;
    const uint32_t unit = units_[at];
    at ^= OffsetOf(unit);
    if (!HasValue(unit)) continue;
    if (at >= units_.size()) return std::nullopt;
    const size_t begin = ValueOf(units_[at]);
    // Within a character no replacement begins.
    if (begin >= replacements_.size() || (replacements_[begin] & 0xc0) == 0x80) return std::nullopt;
    const size_t end = replacements_.find('\0', begin);
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

}  // namespace convene::text
