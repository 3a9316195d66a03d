#include "text/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace convene::text {
namespace {

// Printable Latin-1 stands for itself, the other bytes in order for U+0100 and up.
constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<char32_t, 256> kCharacterOfByte = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}();

constexpr size_t kNumCharacters = 0x144;

constexpr std::array<int16_t, kNumCharacters> kByteOfCharacter = [] {
  std::array<int16_t, kNumCharacters> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacterOfByte[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string* spelled) {
  for (const char byte : bytes) {
    AppendUtf8(kCharacterOfByte[static_cast<unsigned char>(byte)], spelled);
  }
}

std::optional<std::string> BytesOfByteLevel(std::string_view spelled) {
  std::string bytes;
  for (size_t at = 0; at < spelled.size();) {
    const char32_t character = ReadCodePoint(spelled, &at);
    if (character >= kNumCharacters || kByteOfCharacter[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOfCharacter[character]));
  }
  return bytes;
}

}  // namespace convene::text
