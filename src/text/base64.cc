#include "text/base64.h"

#include <cstdint>

namespace convene::text {
namespace {

// The six bits that a character stands for; -1 for none.
int BitsOf(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t num_padding = 0;
  while (num_padding < 2 && num_padding < text.size() &&
         text[text.size() - 1 - num_padding] == '=') {
    ++num_padding;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, text.size() - num_padding)) {
    const int six = BitsOf(c);
    if (six < 0) return std::nullopt;
    bits = (bits << 6 | static_cast<uint32_t>(six)) & 0xffff;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  if ((bits & ((1u << num_bits) - 1)) != 0) return std::nullopt;  // bits that no byte has
  return bytes;
}

}  // namespace convene::text
