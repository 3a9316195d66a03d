// The unigram model of SentencePiece: of all ways to cut a word into tokens, the one whose scores
// add up to the most. It knows no spaces; how they are spelt the pre-tokenizer decided.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace convene::text {

// Longer ones are refused, so that encoding stays linear in the text.
inline constexpr size_t kMaxUnigramTokenBytes = 1024;

struct UnigramOptions {
  std::optional<int32_t> unk_id = {};  // of what stands for characters outside the vocabulary
  bool byte_fallback = false;  // unknown text becomes the tokens <0x00> to <0xFF> of its bytes
};

// Thread-safe.
class Unigram {
 public:
  // scores[i] is that of the token with the id i. Errors: an unk_id without token, tokens that are
  // equal or too long.
  static Result<Unigram> Create(Vocabulary vocabulary, std::vector<double> scores,
                                UnigramOptions options);

  // Appends the ids of `word`, valid UTF-8. Errors: it needs the unknown token, which there is not;
  // it is very long and can nowhere be cut.
  Status Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  // Tokens by their beginnings; the children of a node lie side by side, sorted by their byte.
  struct TrieNode {
    int32_t token = -1;  // id of the token that ends here
    int32_t first_child = 0;
    uint16_t num_children = 0;
    uint8_t byte = 0;
  };
  // The best way to come to a place in the word: from `begin` by `token`.
  struct Arrival {
    double score = 0;
    size_t begin = std::numeric_limits<size_t>::max();
    int32_t token = -1;
  };
  // A token of the result, or unknown characters not yet looked up.
  struct Part {
    size_t begin;
    size_t end;
    int32_t token;
  };

  Unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options);

  Status BuildTrie();
  // The child of `node` for `byte`; -1 if there is none.
  int32_t Child(int32_t node, uint8_t byte) const;

  Status EncodeWord(std::string_view word, std::vector<int32_t>* ids) const;
  void AppendUnknown(std::string_view text, std::vector<int32_t>* ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id
  UnigramOptions options_;
  double unknown_score_ = 0;  // of an unknown character
  std::vector<TrieNode> trie_{1};
  std::vector<int32_t> byte_ids_;  // of <0x00> to <0xFF>, -1 for those that are no token
};

}  // namespace convene::text
