// Regular expressions as the Hugging Face tokenizers package has them: Oniguruma's syntax and
// matches, Unicode 16 whatever the library's version. Not a general interface: no captures, no
// options.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace convene::text {

struct Match {
  size_t begin;  // bytes
  size_t end;
};

// Thread-safe once compiled.
class Regex {
 public:
  // Errors: not a regular expression (with Oniguruma's reason), not UTF-8 or longer than
  // 64 KiB.
  static Result<Regex> Compile(std::string_view pattern);

  // Appends all non-overlapping matches in `text` (valid UTF-8), from left to right; empty ones
  // too, but not directly behind another match nor in an empty text. Errors: a search backtracks
  // far more than the text's length explains, which the patterns of real tokenizers never do.
  Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  struct Free {
    void operator()(void* regex) const;
  };

  explicit Regex(std::string_view pattern) : pattern_(pattern) {}

  std::string pattern_;
  std::unique_ptr<void, Free> regex_;  // OnigRegex
  // In place of the usual stand-ins, for this pattern.
  std::unordered_map<char32_t, char32_t> stand_ins_;
};

// A pattern of tokenizer.json: either literal text or a regular expression.
class Pattern {
 public:
  static Result<Pattern> Literal(std::string_view text);
  static Result<Pattern> Expression(std::string_view pattern);

  // As Regex::FindAll.
  Status FindAll(std::string_view text, std::vector<Match>* matches) const;

  // The text where the pattern is literal and not empty; else empty.
  const std::string& literal() const { return literal_; }

 private:
  Pattern() = default;

  std::string literal_;
  std::shared_ptr<const Regex> regex_;  // shared by copies of the pattern; null for a literal
};

}  // namespace convene::text
