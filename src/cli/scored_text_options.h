// The options that say by which text models are scored, and the reading of it. Its tokens in
// windows are evaluate/scored_text.h.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "evaluate/scored_text.h"

namespace convene::cli {

struct ScoredTextOptions {
  std::string text_path;
  std::string tokens_path;  // instead of a text
  std::optional<int> window;
};

// Declares --text, --tokens and --window.
void AddScoredTextOptions(CLI::App& app, ScoredTextOptions& options);

// Encodes the whole text at once, without special tokens, with the tokenizer in `model_directory`.
// Errors: neither text nor tokens, or both, fewer than 2 tokens, a window of more than the model's
// positions.
Result<evaluate::ScoredText> ReadScoredText(const std::string& model_directory,
                                            const ScoredTextOptions& options);

}  // namespace convene::cli
