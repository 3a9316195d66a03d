// Tokens that are found in the text before the model sees it: special tokens, and words that users
// added. The model's own tokens are vocabulary.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "text/normalizer.h"
#include "text/pieces.h"
#include "text/vocabulary.h"

namespace convene::text {

// Longer ones are refused, so that finding tokens stays linear in the text.
inline constexpr size_t kMaxAddedTokenBytes = 1024;

struct AddedToken {
  std::string content;
  bool single_word = false;  // only between characters that are no part of a word
  bool lstrip = false;       // takes the white space on its left along
  bool rstrip = false;
  bool normalized = true;  // looked for in the normalized text; else in the original, before that
  bool special = false;    // a control token: may be left out of decoded text
};

class AddedTokens {
 public:
  AddedTokens() = default;

  // As the Hugging Face tokenizers package adds them: in order, a token of the vocabulary keeps its
  // id, others get the next free one, whatever id their file declares. Errors: a token that is too
  // long, too many tokens.
  static Result<AddedTokens> Create(const std::vector<AddedToken>& tokens,
                                    const Vocabulary& vocabulary, const Normalizer& normalizer);

  // The text cut at added tokens and normalized between them. With `parse_special` false special
  // tokens are text like any other. Errors: a regular expression of the normalizer gives up.
  Result<Pieces> Extract(std::string_view text, const Normalizer& normalizer,
                         bool parse_special) const;

  std::optional<int32_t> IdOf(std::string_view content) const;

  struct Entry {
    AddedToken token;
    std::string spelling;  // what decoders see: the normalized content where tokens are normalized
    int32_t id;
  };
  const std::vector<Entry>& entries() const { return entries_; }

  // Whether a token of this spelling counts as special: the package goes by the spelling, not the
  // id.
  bool IsSpecial(std::string_view spelling) const {
    return special_contents_.contains(std::string(spelling));
  }

 private:
  // Finds the longest of many strings.
  class Trie {
   public:
    void Insert(std::string_view key, int32_t value);
    // The value of the longest key that `text` begins with and that key's length; -1 if none does.
    std::pair<int32_t, size_t> LongestPrefix(std::string_view text) const;
    bool empty() const { return nodes_.size() == 1; }

   private:
    struct Node {
      int32_t value = -1;
      std::vector<std::pair<char, int32_t>> children;
    };
    std::vector<Node> nodes_{1};
  };

  void Cut(std::string_view text, size_t offset, const Trie& trie, bool parse_special,
           std::vector<Piece>* pieces) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> entry_of_content_;
  std::unordered_set<std::string> special_contents_;
  Trie original_;    // contents of tokens that are not normalized; values are indices of entries_
  Trie normalized_;  // spellings of those that are
};

}  // namespace convene::text
