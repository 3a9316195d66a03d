// The older form of a tokenizer, vocab.json and merges.txt: how it cuts text is known only from the
// name of its Python class. tokenizer.json says all itself (tokenizer_json.h).
#pragma once

#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

namespace convene::text {

// From vocab.json, merges.txt and, where there are, tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and config.json (for the kind of model) in `directory`. Errors: missing or
// malformed files, a class that convene does not know.
Result<TokenizerParts> ReadVocabularyFiles(const std::string& directory);

}  // namespace convene::text
