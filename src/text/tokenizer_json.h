// Reads tokenizer.json: model, tokens and templates; its steps are tokenizer_steps_json.h.
// Truncation and padding, which it may hold too, are left to whoever makes batches.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace convene::text {

// All parts but the roles of tokens, which tokenizer_config.json gives. Errors: a component that
// convene does not know, by name; malformed fields; tokens or merges that contradict each other.
Result<TokenizerParts> ReadTokenizerJson(const nlohmann::json& document);

// The tokens of an object that maps them to ids, as in vocab.json. Errors: an id that is no whole
// number.
Result<std::vector<Token>> ReadVocabulary(const nlohmann::json& object);

// The merge in a line of merges.txt, "left right". Errors: it is not two tokens with a space
// between.
Result<Merge> ReadMergeLine(std::string_view line);

NamedTokens RolesOf(const TokenizerConfig& config);

}  // namespace convene::text
