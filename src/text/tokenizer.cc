#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace convene::text {
namespace {

// `ids` within the templates, applied one after the other; with `add_special_tokens` false only the
// text's own tokens.
std::vector<int32_t> ApplyTemplates(const std::vector<TokenTemplate>& templates,
                                    std::vector<int32_t> ids, bool add_special_tokens) {
  for (const TokenTemplate& token_template : templates) {
    std::vector<int32_t> filled;
    filled.reserve(ids.size() + token_template.parts.size());
    for (const auto& part : token_template.parts) {
      if (const auto* special = std::get_if<std::vector<int32_t>>(&part)) {
        if (add_special_tokens) filled.insert(filled.end(), special->begin(), special->end());
      } else {
        filled.insert(filled.end(), ids.begin(), ids.end());
      }
    }
    ids = std::move(filled);
  }
  return ids;
}

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // regular expressions count in int

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  int32_t max_id = parts_.model.vocabulary().max_id();
  for (const auto& entry : parts_.added_tokens.entries()) max_id = std::max(max_id, entry.id);
  tokens_.resize(max_id + 1);
  const auto set = [&](int32_t id, const std::string& text) {
    tokens_[id] = {.text = text, .exists = true, .is_special = parts_.added_tokens.IsSpecial(text)};
  };
  for (const Token& token : parts_.model.vocabulary().tokens()) set(token.id, token.text);
  for (const auto& entry : parts_.added_tokens.entries()) set(entry.id, entry.spelling);
  if (auto& eos = parts_.named_tokens.eos) eos->id = IdOf(eos->text);
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Error{fmt::format("a text of {} bytes; at most {} can be tokenized at once", text.size(),
                             kMaxTextBytes)};
  }
  if (const size_t valid = ValidUtf8Prefix(text); valid < text.size()) {
    return Error{
        fmt::format("the text is not valid UTF-8: byte 0x{:02x} at offset {} begins no "
                    "character; convert it to UTF-8 first",
                    static_cast<unsigned char>(text[valid]), valid)};
  }
  auto pieces = parts_.added_tokens.Extract(text, parts_.normalizer, options.parse_special);
  if (!pieces) return pieces.error();
  if (Status status = parts_.pre_tokenizer.Apply(&*pieces); !status) return status.error();

  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  WordCache cache;
  for (const Piece& piece : pieces->pieces) {
    if (piece.token != kNoToken) {
      ids.push_back(piece.token);
      continue;
    }
    const auto word = std::string_view(pieces->text).substr(piece.begin, piece.end - piece.begin);
    if (Status status = parts_.model.Encode(word, &cache, &ids); !status) return status.error();
  }
  return ApplyTemplates(parts_.templates, std::move(ids), options.add_special_tokens);
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                      bool skip_special_tokens) const {
  StreamDecoder decoder(*this, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    auto part = decoder.Push(id);
    if (!part) return part.error();
    text += *part;
  }
  auto rest = decoder.Finish();
  if (!rest) return rest.error();
  return text + *rest;
}

std::optional<int32_t> Tokenizer::IdOf(std::string_view token) const {
  if (const auto id = parts_.added_tokens.IdOf(token)) return id;
  return parts_.model.vocabulary().IdOf(token);
}

Result<const Tokenizer::DecodedToken*> Tokenizer::Find(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    return Error{
        fmt::format("there is no token {}; the tokenizer has ids 0 to {}", id, vocab_size() - 1)};
  }
  if (!tokens_[id].exists) {
    return Error{fmt::format(
        "the tokenizer has no token with the id {}, which its vocabulary leaves out", id)};
  }
  return &tokens_[id];
}

Result<std::string> Tokenizer::TextOf(int32_t id) const {
  const auto token = Find(id);
  if (!token) return token.error();
  return (*token)->text;
}

Result<std::string> Tokenizer::BytesOf(int32_t id) const {
  const auto token = Find(id);
  if (!token) return token.error();
  return parts_.decoder.BytesOf((*token)->text);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && tokens_[id].is_special;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens,
                             std::vector<int32_t> shown)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(skip_special_tokens),
      shown_(std::move(shown)),
      state_(tokenizer.parts_.decoder) {}

Result<std::string> StreamDecoder::Push(int32_t id) {
  const auto token = tokenizer_->Find(id);
  if (!token) return token.error();
  std::string text;
  if (skip_special_tokens_ && (*token)->is_special &&
      std::ranges::find(shown_, id) == shown_.end()) {
    return text;
  }
  if (Status status = state_.Push((*token)->text, &text); !status) return status.error();
  return text;
}

Result<std::string> StreamDecoder::Finish() {
  std::string text;
  if (Status status = state_.Finish(&text); !status) return status.error();
  return text;
}

}  // namespace convene::text
