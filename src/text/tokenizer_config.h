// What tokenizer_config.json says about tokens; chat templates, which it may hold too, are
// chat_template.h.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"

namespace convene::text {

// In the order in which transformers adds their tokens.
inline constexpr std::array kSpecialTokenRoles{"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

struct TokenizerConfig {
  std::string tokenizer_class;  // without "Fast"; empty if the file does not say
  // Roles (bos_token, eos_token, unk_token, pad_token, ...) to tokens; without content where the
  // file says null.
  std::map<std::string, AddedToken> special_tokens;
  std::vector<AddedToken> additional_special_tokens;
  std::optional<std::map<int64_t, AddedToken>> added_tokens;  // "added_tokens_decoder", by id
  bool add_bos_token = false;
  bool add_eos_token = false;
  bool add_prefix_space = false;
};

// Errors: a field of the wrong type.
Result<TokenizerConfig> ReadTokenizerConfig(const nlohmann::json& document);

// An object with the content and the flags of an added token; a missing flag is false, "normalized"
// the opposite of "special". Errors: a field of the wrong type.
Result<AddedToken> ReadAddedToken(const nlohmann::json& value);

// Adds the roles of `document`, special_tokens_map.json or tokenizer_config.json, to `config`.
// Errors: a token that is neither a string nor an object with one.
Status ReadSpecialTokens(const nlohmann::json& document, TokenizerConfig* config);

}  // namespace convene::text
