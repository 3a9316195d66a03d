// Reads a tokenizer.json and encodes a text with it: whatever both are, the tokens decode, in a
// stream as well as at once, and nothing but UTF-8 comes out.
//
// An input is a tokenizer.json, a zero byte and a text; or, if it does not begin with '{', a text
// for a tokenizer of several steps.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "encode_and_decode.h"
#include "text/tokenizer.h"

namespace {

using convene::text::Tokenizer;

constexpr std::string_view kTokenizer = R"({
  "added_tokens": [
    {"id": 8, "content": "<s>", "special": true},
    {"id": 9, "content": "[ab]", "special": false, "lstrip": true, "rstrip": true,
     "single_word": true},
    {"id": 10, "content": "  ", "special": false, "normalized": true}],
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
