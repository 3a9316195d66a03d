// Which tokens an answer may go on with, so that its text stays within a grammar. The sampler
// leaves out all others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/token_trie.h"

namespace convene::grammar {

// A grammar with the sets of tokens that were found for its states: what the answers of a request,
// or of requests with the same grammar, share. One thread uses all its matchers.
class TokenMasks {
 public:
  // `end_tokens` end a text: they may come where it may end.
  TokenMasks(Grammar grammar, std::shared_ptr<const TokenTrie> trie,
             std::vector<int32_t> end_tokens);

 private:
  friend class TokenMatcher;

  std::span<const uint64_t> MaskOf(int32_t state);
  // Bounds what is kept; states have other numbers afterwards.
  bool ForgetIfLarge();

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> end_tokens_;
  std::unordered_map<int32_t, std::vector<uint64_t>> masks_;  // by state
  std::vector<int32_t> path_;                                 // scratch: a state per depth
  uint64_t generation_ = 0;
};

class TokenMatcher {
 public:
  explicit TokenMatcher(std::shared_ptr<TokenMasks> masks);

  // A bit for each token of the vocabulary, in words of 64; valid until the next call of any
  // matcher of the same masks.
  std::span<const uint64_t> Allowed();
  // False: the answer has come where no token leads on, and it is not whole.
  bool AllowsAny();

  // The token that was chosen; one of the allowed.
  void Advance(int32_t token);

  // Whether the text is whole, and nothing may follow.
  bool IsComplete();

 private:
  int32_t State();

  std::shared_ptr<TokenMasks> masks_;
  Stacks stacks_;
  int32_t state_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace convene::grammar
