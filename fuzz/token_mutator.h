// Changes a text by what all text formats are made of: numbers, words, quoted strings and groups in
// brackets. It knows no format, and leaves changes of single bytes to its callers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

class TokenMutator {
 public:
  explicit TokenMutator(uint32_t seed) : generator_(seed) {}

  // Makes one change. Returns false, with `text` as it was, where there is nothing to change.
  bool Change(std::string* text);

 private:
  struct Token {
    enum class Kind { kNumber, kWord, kString, kGroup };
    Kind kind;
    size_t begin;
    size_t end;
  };

  // The tokens of `text`, nested ones too.
  static std::vector<Token> FindTokens(std::string_view text);

  // Below 1 counts as 1. The generator's sequence is fixed by the standard, distributions' are not.
  size_t Below(size_t limit) { return limit < 2 ? 0 : generator_() % limit; }
  std::string OtherNumber(std::string_view number);
  std::string OtherValue();

  std::minstd_rand generator_;
};
