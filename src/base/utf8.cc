#include "base/utf8.h"

#include <cstring>

namespace convene {

Utf8Unit NextUtf8(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {Utf8Kind::kCharacter, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Kind::kMalformed, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what is beyond U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kCut, i};
    if (at(i) < low || at(i) > high) return {Utf8Kind::kMalformed, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Utf8Kind::kCharacter, length};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t word = 0;
    if (bytes.size() - at >= sizeof(word)) {
      std::memcpy(&word, bytes.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const Utf8Unit unit = NextUtf8(bytes.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) return at;
    at += unit.length;
  }
  return at;
}

char32_t ReadCodePoint(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[*at + i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    *at += 1;
    return lead;
  }
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3f); };
  if (lead < 0xe0) {
    const char32_t code_point = (lead & 0x1f) << 6 | tail(1);
    *at += 2;
    return code_point;
  }
  if (lead < 0xf0) {
    const char32_t code_point = (lead & 0x0f) << 12 | tail(1) << 6 | tail(2);
    *at += 3;
    return code_point;
  }
  const char32_t code_point = (lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
  *at += 4;
  return code_point;
}

size_t PreviousCharacter(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begin;
}

void AppendUtf8(char32_t code_point, std::string* text) {
  const auto put = [&](char32_t byte) { text->push_back(static_cast<char>(byte)); };
  const auto tail = [&](int shift) { put(0x80 | (code_point >> shift & 0x3f)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    put(0xf0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace convene
