// Reads the model of a tokenizer.json, which cuts words into tokens, and the forms of vocabularies
// and merges that other files share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token_model.h"

namespace convene::text {

// Errors: a model that convene does not know, by name; malformed fields; tokens or merges that
// contradict each other.
Result<TokenModel> ReadTokenModel(const nlohmann::json& object);

// The tokens of an object that maps them to ids, as in vocab.json. Errors: an id that is no whole
// number.
Result<std::vector<Token>> ReadVocabulary(const nlohmann::json& object);

// The merge in a line of merges.txt, "left right". Errors: it is not two tokens with a space
// between.
Result<Merge> ReadMergeLine(std::string_view line);

}  // namespace convene::text
