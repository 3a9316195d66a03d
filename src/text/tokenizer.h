// Text to token ids and back, exactly as the Hugging Face tokenizers package does it for byte pair
// encoding and unigram models. Not chat templates (chat_template.h), not detecting the end of an
// answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"

namespace convene::text {

// A token with a role, as tokenizer_config.json names it.
struct NamedToken {
  std::string text;
  std::optional<int32_t> id;  // none if the tokenizer has no such token
};

struct NamedTokens {
  std::optional<NamedToken> eos;
};

// The tokens that a tokenizer puts around a text, such as one for its beginning. Not the chat
// template, which is text (chat_template.h).
struct TextTokens {};  // where the text's own tokens go

struct TokenTemplate {
  std::vector<std::variant<TextTokens, std::vector<int32_t>>> parts;
};

// What a tokenizer is made of; tokenizer_json.h and vocabulary_files.h fill it.
struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenModel model;
  AddedTokens added_tokens;
  std::vector<TokenTemplate> templates;
  Decoder decoder;
  NamedTokens named_tokens;
};

struct EncodeOptions {
  bool add_special_tokens = true;  // those around the text, as <s>
  bool parse_special = true;       // special tokens spelt out in the text become tokens
};

// Immutable, thread-safe.
class Tokenizer {
 public:
  // From tokenizer.json, else vocab.json and merges.txt, of a checkpoint directory; with
  // tokenizer_config.json where there is one. Errors: missing or malformed files, or a component
  // that convene does not know, by its name.
  static Result<Tokenizer> Load(const std::string& directory);

  // From the contents of tokenizer.json and, where there is one, of tokenizer_config.json.
  static Result<Tokenizer> FromJson(
      std::string_view tokenizer_json,
      std::optional<std::string_view> tokenizer_config_json = std::nullopt);

  explicit Tokenizer(TokenizerParts parts);

  // Errors: `text` is not valid UTF-8 (with the offset of the first bad byte), is larger than 1
  // GiB, or a regular expression of the tokenizer gives up on it.
  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // Bytes that are no UTF-8 become U+FFFD. Errors: an id without token.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // One more than the highest id.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> IdOf(std::string_view token) const;

  // The token as the vocabulary spells it. Errors: an id without token.
  Result<std::string> TextOf(int32_t id) const;
  // The bytes that the token stands for in the middle of a text, not always whole UTF-8 characters.
  // Errors: an id without token.
  Result<std::string> BytesOf(int32_t id) const;
  // False for ids that a model may have beyond its tokenizer's, as padding.
  bool HasToken(int32_t id) const { return id >= 0 && id < vocab_size() && tokens_[id].exists; }
  // Whether decoding may skip it; false for ids without token.
  bool IsSpecial(int32_t id) const;

  const NamedTokens& named_tokens() const { return parts_.named_tokens; }

 private:
  friend class StreamDecoder;

  // What decoding needs to know of an id.
  struct DecodedToken {
    std::string text;
    bool exists = false;
    bool is_special = false;
  };

  Result<const DecodedToken*> Find(int32_t id) const;

  TokenizerParts parts_;
  std::vector<DecodedToken> tokens_;  // by id
};

// Decodes one text as its tokens come. All that Push and Finish return, put together, is what
// Decode gives. Holds a view of the tokenizer, which must outlive it.
class StreamDecoder {
 public:
  // `shown`: special tokens that are not skipped, because they mean something to the reader.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens,
                std::vector<int32_t> shown = {});

  // The text that is certain now: whole UTF-8 characters, often nothing. Errors: an id without
  // token.
  Result<std::string> Push(int32_t id);
  // The rest. Nothing may be pushed afterwards.
  Result<std::string> Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> shown_;
  DecoderState state_;
};

}  // namespace convene::text
