// The older form of a tokenizer, vocab.json and merges.txt: how it cuts text is known only from the
// name of its Python class. tokenizer.json says all itself (tokenizer_json.h).
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

namespace convene::text {

// The contents of a file of a tokenizer. Errors: it cannot be read or is larger than 512 MiB.
Result<std::string> ReadTokenizerFile(const std::string& path);
// Nothing where there is no such file.
Result<std::optional<std::string>> ReadTokenizerFileIfThere(const std::string& path);

// From vocab.json, merges.txt and, where there are, tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and config.json (for the kind of model) in `directory`. Errors: missing or
// malformed files, a class that convene does not know.
Result<TokenizerParts> ReadVocabularyFiles(const std::string& directory);

// What those files hold; of the optional ones nothing where there is no such file.
struct VocabularyTexts {
  std::string vocab;   // vocab.json
  std::string merges;  // merges.txt
  std::optional<std::string> tokenizer_config;
  std::optional<std::string> special_tokens_map;
  std::optional<std::string> added_tokens;
  std::optional<std::string> model_config;  // config.json
};

// The same from the texts themselves. Errors name the file, without a directory.
Result<TokenizerParts> ParseVocabularyTexts(const VocabularyTexts& texts);

}  // namespace convene::text
