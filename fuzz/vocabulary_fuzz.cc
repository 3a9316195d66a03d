// Any bytes as a tokenizer of the older form: refused, or it encodes a text, which decodes.
//
// An input is what its files hold, with zero bytes between: merges.txt, vocab.json,
// tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json, and the text.
// What is left out at the end is not there, and an empty file is not there either.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "encode_and_decode.h"
#include "take_part.h"
#include "text/tokenizer.h"
#include "text/vocabulary_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace text = convene::text;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto take_optional = [&] {
    const std::string_view part = TakePart(input);
    return part.empty() ? std::nullopt : std::optional(std::string(part));
  };
  text::VocabularyTexts texts;
  texts.merges = TakePart(input);
  texts.vocab = TakePart(input);
  texts.tokenizer_config = take_optional();
  texts.special_tokens_map = take_optional();
  texts.added_tokens = take_optional();
  texts.model_config = take_optional();
  auto parts = text::ParseVocabularyTexts(texts);
  if (!parts) return 0;
  // Short, because a pattern may take time in proportion to its square.
  constexpr size_t kMaxTextBytes = 200;
  EncodeAndDecode(text::Tokenizer(*std::move(parts)), input.substr(0, kMaxTextBytes));
  return 0;
}
