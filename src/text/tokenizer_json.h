// Reads tokenizer.json: added tokens and templates, and all together; its model is
// token_model_json.h, its steps are tokenizer_steps_json.h.
// Truncation and padding, which it may hold too, are left to whoever makes batches.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace convene::text {

// `config`: what tokenizer_config.json says, or null. It gives the roles of tokens, and further
// tokens: added_tokens_decoder, the usual roles and lists of additional tokens, as transformers
// takes them from there (TokenizersBackend, 5.23.0). That also adds other keys that end in _token,
// lists that are objects, and special_tokens_map.json where there is no decoder; these are not
// read. Its add_bos_token and add_eos_token say nothing beside a tokenizer.json. Errors: a
// component that convene does not know, by name; malformed fields; tokens or merges that contradict
// each other.
Result<TokenizerParts> ReadTokenizerJson(const nlohmann::json& document,
                                         const TokenizerConfig* config = nullptr);

NamedTokens RolesOf(const TokenizerConfig& config);

}  // namespace convene::text
