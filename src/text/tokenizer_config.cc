#include "text/tokenizer_config.h"

#include <charconv>
#include <string_view>

#include "base/quote.h"
#include "text/json_fields.h"
#include "text/vocabulary.h"

namespace convene::text {
namespace {

// A token is spelt as a string, and then a special one, or as an object with its "content".
Result<AddedToken> ReadSpecialToken(const nlohmann::json& value, std::string_view where) {
  if (value.is_string()) {
    return AddedToken{.content = value.get<std::string>(), .normalized = false, .special = true};
  }
  JsonFields fields(value, where);
  const std::string content = fields.String("content");
  if (!fields.status()) return fields.status().error();
  if (content.empty()) return AddedToken();
  return ReadAddedToken(value);
}

Result<std::map<int64_t, AddedToken>> ReadAddedTokensDecoder(const nlohmann::json& object) {
  std::map<int64_t, AddedToken> tokens;
  for (const auto& [key, value] : object.items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
      return Error{fmt::format("added_tokens_decoder: {} is no token id; it must be from 0 to {}",
                               Quote(key), kMaxTokenId)};
    }
    auto token = ReadAddedToken(value);
    if (!token) return token.error();
    tokens.emplace(id, *std::move(token));
  }
  return tokens;
}

}  // namespace

Result<AddedToken> ReadAddedToken(const nlohmann::json& value) {
  JsonFields fields(value, "added token");
  AddedToken token{.content = fields.String("content"),
                   .single_word = fields.Bool("single_word", false),
                   .lstrip = fields.Bool("lstrip", false),
                   .rstrip = fields.Bool("rstrip", false),
                   .special = fields.Bool("special", false)};
  token.normalized = fields.Bool("normalized", !token.special);
  if (token.content.empty()) fields.Fail("content", "at least one character");
  if (!fields.status()) return fields.status().error();
  return token;
}

Status ReadSpecialTokens(const nlohmann::json& document, TokenizerConfig* config) {
  JsonFields fields(document, "special tokens");
  if (!fields.status()) return fields.status();
  for (const char* role : kSpecialTokenRoles) {
    if (!document.contains(role)) continue;
    const nlohmann::json* value = fields.Find(role);
    if (value == nullptr) {
      config->special_tokens[role] = {};
      continue;
    }
    auto token = ReadSpecialToken(*value, role);
    if (!token) return token.error();
    config->special_tokens[role] = *std::move(token);
  }
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    // Newer files may map roles to tokens here.
    if (fields.Find(key) == nullptr || fields.Find(key)->is_object()) continue;
    const nlohmann::json& tokens = fields.Array(key);
    for (const nlohmann::json& value : tokens) {
      auto token = ReadSpecialToken(value, key);
      if (!token) return token.error();
      config->additional_special_tokens.push_back(*std::move(token));
    }
    // As in transformers, the older name counts only where the newer one lists nothing.
    if (!tokens.empty()) break;
  }
  return fields.status();
}

Result<TokenizerConfig> ReadTokenizerConfig(const nlohmann::json& document) {
  JsonFields fields(document, "tokenizer_config.json");
  TokenizerConfig config;
  config.tokenizer_class = fields.String("tokenizer_class", "");
  constexpr std::string_view kFast = "Fast";
  if (config.tokenizer_class.ends_with(kFast)) {
    config.tokenizer_class.resize(config.tokenizer_class.size() - kFast.size());
  }
  config.add_bos_token = fields.Bool("add_bos_token", false);
  config.add_eos_token = fields.Bool("add_eos_token", false);
  config.add_prefix_space = fields.Bool("add_prefix_space", false);
  if (!fields.status()) return fields.status().error();
  if (Status status = ReadSpecialTokens(document, &config); !status) return status.error();
  if (fields.Find("added_tokens_decoder") != nullptr) {
    auto tokens = ReadAddedTokensDecoder(fields.Object("added_tokens_decoder"));
    if (!fields.status()) return fields.status().error();
    if (!tokens) return tokens.error();
    config.added_tokens = *std::move(tokens);
  }
  return config;
}

}  // namespace convene::text
