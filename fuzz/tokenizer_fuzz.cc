// Reads a tokenizer.json and encodes a text with it: whatever both are, the tokens decode, in a
// stream as well as at once, and nothing but UTF-8 comes out.
//
// An input is a tokenizer.json, a zero byte and a text; or, if it does not begin with '{', a text
// for a tokenizer of several steps.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using convene::text::StreamDecoder;
using convene::text::Tokenizer;

constexpr std::string_view kTokenizer = R"({
  "added_tokens": [
    {"content": "<s>", "special": true},
    {"content": "[ab]", "special": false, "lstrip": true, "rstrip": true, "single_word": true},
    {"content": "  ", "special": false, "normalized": true}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated",
     "invert": false},
    {"type": "Digits", "individual_digits": true}, {"type": "Punctuation"},
    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true}]},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]},
  "model": {"type": "BPE", "unk_token": "u", "byte_fallback": true, "fuse_unk": true,
    "vocab": {"u": 0, "a": 1, "b": 2, "ab": 3, "_": 4, "_a": 5, "<0xC3>": 6, "<0xA9>": 7},
    "merges": ["a b", "_ a"]}})";

void EncodeAndDecode(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer.Encode(text, {.parse_special = parse_special});
    if (!ids) continue;
    for (const bool skip_special : {true, false}) {
      StreamDecoder stream(tokenizer, skip_special);
      std::string streamed;
      bool is_complete = true;
      for (const int32_t id : *ids) {
        const auto part = stream.Push(id);
        is_complete = is_complete && part.ok();
        if (!part) break;
        CHECK(convene::text::ValidUtf8Prefix(*part) == part->size());
        streamed += *part;
      }
      const auto rest = is_complete ? stream.Finish() : convene::Error{};
      const auto at_once = tokenizer.Decode(*ids, skip_special);
      CHECK(at_once.ok() == rest.ok());
      if (rest) CHECK(streamed + *rest == *at_once);
    }
    for (const int32_t id : *ids) {
      if (tokenizer.HasToken(id)) static_cast<void>(tokenizer.BytesOf(id).ok());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (!input.starts_with('{')) {
    static const Tokenizer fixed = *Tokenizer::FromJson(kTokenizer);
    EncodeAndDecode(fixed, input);
    return 0;
  }
  const size_t end = input.find('\0');
  const auto tokenizer = Tokenizer::FromJson(input.substr(0, end));
  if (!tokenizer) return 0;
  // Short, because a pattern may take time in proportion to its square.
  constexpr size_t kMaxTextBytes = 200;
  const std::string_view text =
      end == input.npos ? "a b é12" : input.substr(end + 1, kMaxTextBytes);
  EncodeAndDecode(*tokenizer, text);
  return 0;
}
