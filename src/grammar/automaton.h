// Follows texts byte by byte through a grammar. It is a pushdown automaton over all alternatives at
// once whose states are found as they are met, and kept, so that most bytes cost one look-up. Not
// tokens: token_matcher.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace convene::grammar {

// What is still to come, per alternative: positions in the grammar, the next one last. Sorted.
using Stacks = std::vector<std::vector<uint32_t>>;

class Automaton {
 public:
  static constexpr int32_t kDead = -1;

  explicit Automaton(Grammar grammar);

  Stacks Start() const;
  // The number of a state, valid until Forget.
  int32_t StateOf(const Stacks& stacks);
  const Stacks& StacksOf(int32_t state) const { return states_[static_cast<size_t>(state)].stacks; }

  // The state behind `byte`, or kDead where the text cannot go on with it.
  int32_t Next(int32_t state, unsigned char byte) {
    const int32_t next = states_[static_cast<size_t>(state)].next[byte];
    return next == kUnknown ? FindNext(state, byte) : next;
  }

  // Whether the text may end here, and whether it may go on.
  bool MayEnd(int32_t state) const;
  bool MayGoOn(int32_t state) const;

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  // Drops all states, so that their memory is bounded.
  void Forget();

 private:
  static constexpr int32_t kUnknown = -2;

  struct State {
    Stacks stacks;
    std::array<int32_t, 256> next;
  };

  void Expand(std::vector<uint32_t> stack, Stacks* expanded) const;
  int32_t FindNext(int32_t state, unsigned char byte);

  Grammar grammar_;
  std::vector<State> states_;
  std::unordered_map<std::string, int32_t> known_;  // by the bytes of their stacks
};

}  // namespace convene::grammar
