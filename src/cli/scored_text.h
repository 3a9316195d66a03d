// The text by which models are scored: its tokens, in windows that share nothing. What is computed
// from a model's answers is logits_difference.h.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace convene::cli {

struct ScoredTextOptions {
  std::string text_path;
  std::string tokens_path;  // instead of a text
  std::optional<int> window;
};

// Declares --text, --tokens and --window.
void AddScoredTextOptions(CLI::App& app, ScoredTextOptions& options);

struct ScoredText {
  std::vector<int32_t> tokens;
  int window = 0;  // tokens per window

  // Point into `tokens`; the last one may be shorter.
  std::vector<std::span<const int32_t>> Windows() const;
  // Every token of a window but its first.
  int64_t num_scored() const;
};

// Encodes the whole text at once, without special tokens, with the tokenizer in `model_directory`.
// Errors: neither text nor tokens, or both, fewer than 2 tokens, a window of more than the model's
// positions.
Result<ScoredText> ReadScoredText(const std::string& model_directory,
                                  const ScoredTextOptions& options);

}  // namespace convene::cli
