#include "base/quote.h"

namespace convene {
namespace {

// The length of the UTF-8 character at the start of `text`, 0 where it is malformed, cut or a
// control character. Overlong forms and surrogates pass: terminals show them as a replacement
// character.
size_t PrintableLength(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x20 || lead == 0x7f) return 0;
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 && lead < 0xf8 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (length == 0 || lead >= 0xf8 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const bool is_c1_control = lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
  return is_c1_control ? 0 : length;
}

}  // namespace

std::string Printable(std::string_view text, std::string_view allowed) {
  std::string printable;
  printable.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = PrintableLength(text.substr(at));
    if (length > 0) {
      printable += text.substr(at, length);
    } else {
      printable += allowed.find(text[at]) != std::string_view::npos ? text[at] : '?';
    }
    at += length > 0 ? length : 1;
  }
  return printable;
}

std::string Quote(std::string_view text) {
  constexpr size_t kMaxBytes = 100;
  if (text.size() <= kMaxBytes) return '"' + Printable(text) + '"';
  // Not through the middle of a character, which has up to 4 bytes.
  size_t end = kMaxBytes;
  while (end + 4 > kMaxBytes && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return '"' + Printable(text.substr(0, end)) + "...\"";
}

}  // namespace convene
