#include "encode_and_decode.h"

#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/utf8.h"

using convene::text::StreamDecoder;
using convene::text::Tokenizer;

void EncodeAndDecode(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer.Encode(text, {.parse_special = parse_special});
    if (!ids) continue;
    const auto again = tokenizer.Encode(text, {.parse_special = parse_special});
    CHECK(again && *again == *ids);  // words are remembered
    // Those around the text are as the file says, also where it has no such token.
    const auto of_text =
        tokenizer.Encode(text, {.add_special_tokens = false, .parse_special = parse_special});
    CHECK(of_text && of_text->size() <= ids->size());
    for (const int32_t id : *of_text) CHECK(tokenizer.HasToken(id), "{}", id);
    for (const bool skip_special : {true, false}) {
      StreamDecoder stream(tokenizer, skip_special);
      std::string streamed;
      bool is_complete = true;
      for (const int32_t id : *ids) {
        const auto part = stream.Push(id);
        is_complete = is_complete && part.ok();
        if (!part) break;
        CHECK(convene::ValidUtf8Prefix(*part) == part->size());
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
