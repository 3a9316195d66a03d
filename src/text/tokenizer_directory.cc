// How a Tokenizer comes about: from JSON or from the files of a directory.
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/is_there.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"
#include "text/vocabulary_files.h"

namespace convene::text {

Result<Tokenizer> Tokenizer::FromJson(std::string_view tokenizer_json,
                                      std::optional<std::string_view> tokenizer_config_json) {
  const auto document = ParseJson(tokenizer_json);
  if (!document) return document.error().At("tokenizer.json");
  std::optional<TokenizerConfig> config;
  if (tokenizer_config_json) {
    const auto config_document = ParseJson(*tokenizer_config_json);
    if (!config_document) return config_document.error().At("tokenizer_config.json");
    auto read = ReadTokenizerConfig(*config_document);
    if (!read) return read.error();
    config = *std::move(read);
  }
  auto parts = ReadTokenizerJson(*document, config ? &*config : nullptr);
  if (!parts) return parts.error();
  return Tokenizer(*std::move(parts));
}

Result<Tokenizer> Tokenizer::Load(const std::string& directory) {
  if (IsThere(directory + "/tokenizer.json")) {
    const auto tokenizer_json = ReadTokenizerFile(directory + "/tokenizer.json");
    if (!tokenizer_json) return tokenizer_json.error();
    const auto config_json = ReadTokenizerFileIfThere(directory + "/tokenizer_config.json");
    if (!config_json) return config_json.error();
    auto tokenizer = FromJson(*tokenizer_json, *config_json);
    if (!tokenizer) return tokenizer.error().At(directory);
    return tokenizer;
  }
  const bool has_vocabulary = IsThere(directory + "/vocab.json");
  const bool has_merges = IsThere(directory + "/merges.txt");
  if (has_vocabulary && has_merges) {
    auto parts = ReadVocabularyFiles(directory);
    if (!parts) return parts.error();
    return Tokenizer(*std::move(parts));
  }
  std::error_code ignored;
  if (std::filesystem::exists(directory, ignored) &&
      !std::filesystem::is_directory(directory, ignored)) {
    return Error{fmt::format(
        "{} is no directory; a tokenizer is needed here, so give the model directory", directory)};
  }
  return NotFound(fmt::format(
      "{} holds no tokenizer: neither tokenizer.json nor vocab.json with merges.txt{}", directory,
      IsThere(directory + "/tokenizer.model") ? " (tokenizer.model alone is not read; save the "
                                                "tokenizer with transformers to get tokenizer.json)"
                                              : ""));
}

}  // namespace convene::text
