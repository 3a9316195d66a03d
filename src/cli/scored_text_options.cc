#include "cli/scored_text_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/units.h"
#include "checkpoint/model_files.h"
#include "cli/output.h"
#include "cli/token_file.h"
#include "cli/value_options.h"
#include "engine/loaded_model.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

constexpr int kDefaultWindow = 512;

Result<std::vector<int32_t>> ReadTokens(const std::string& model_directory,
                                        const ScoredTextOptions& options) {
  if (!options.tokens_path.empty()) return ReadTokenFile(options.tokens_path);
  if (options.text_path.empty()) return Error{"there is nothing to score; give --text or --tokens"};
  const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_directory);
  if (!tokenizer) return tokenizer.error();
  const Result<std::string> text = ReadText(options.text_path);
  if (!text) return text.error();
  return tokenizer->Encode(*text, {.add_special_tokens = false, .parse_special = false});
}

}  // namespace

void AddScoredTextOptions(CLI::App& app, ScoredTextOptions& options) {
  CLI::Option* text = AddPath(app, "--text", options.text_path, "The text ('-': stdin)");
  AddPath(app, "--tokens", options.tokens_path,
          "Token ids instead: decimal, or .npy of int32 or int64")
      ->excludes(text);
  AddNumber(app, "--window", options.window, {2, engine::kMaxContext},
            "Tokens per window (default: the context, at most 512)");
}

Result<evaluate::ScoredText> ReadScoredText(const std::string& model_directory,
                                            const ScoredTextOptions& options) {
  Result<std::vector<int32_t>> tokens = ReadTokens(model_directory, options);
  if (!tokens) return tokens.error();
  if (tokens->size() < 2) {
    return Error{fmt::format("{} holds {}; at least 2 are needed to score one",
                             options.tokens_path.empty() ? options.text_path : options.tokens_path,
                             FormatCount(tokens->size(), "token"))};
  }
  const Result<model::ModelSpec> spec = checkpoint::OpenConfig(model_directory);
  if (!spec) return spec.error();
  const int window = options.window.value_or(std::min(spec->max_positions, kDefaultWindow));
  if (window > spec->max_positions) {
    return Error{fmt::format("--window {} is more than the model's {} positions", window,
                             spec->max_positions)};
  }
  return evaluate::ScoredText{.tokens = *std::move(tokens), .window = window};
}

}  // namespace convene::cli
