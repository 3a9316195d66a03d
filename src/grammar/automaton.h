// Follows texts byte by byte through a grammar. It is a pushdown automaton over all alternatives at
// once, whose stacks share what they have in common, as in Tomita (Efficient Parsing for Natural
// Language, 1986); its states are found as they are met, and kept, so that most bytes cost one
// look-up. Not tokens: token_matcher.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace convene::grammar {

// The stacks of a state by themselves: sets, each behind those that it refers to, the state's last.
// A set has the positions in the grammar that may be next, in their order, and for each the index
// of the set of what is below it.
using Stacks = std::vector<std::vector<std::pair<uint32_t, uint32_t>>>;

class Automaton {
 public:
  static constexpr int32_t kDead = -1;

  // Stacks that one byte may lead to. Beyond them some texts that may be are not found; none is
  // found that may not be. Whoever makes a grammar of thousands of alternatives sees that it has
  // fewer.
  static constexpr size_t kMaxEntries = size_t{1} << 17;

  explicit Automaton(Grammar grammar);

  Stacks Start();
  // The number of a state, valid until Forget.
  int32_t StateOf(const Stacks& stacks);
  Stacks StacksOf(int32_t state) const;

  // The state behind `byte`, or kDead where the text cannot go on with it.
  int32_t Next(int32_t state, unsigned char byte) {
    const int32_t next = states_[static_cast<size_t>(state)].next[byte];
    return next == kUnknown ? FindNext(state, byte) : next;
  }

  // Whether the text may end here, and whether it may go on.
  bool MayEnd(int32_t state) const { return EntriesOf(state).back().position == kNothing; }
  bool MayGoOn(int32_t state) const { return EntriesOf(state).front().position != kNothing; }

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  size_t num_sets() const { return sets_.size(); }  // of stacks, which states refer to
  // Drops all states, so that their memory is bounded.
  void Forget();

 private:
  static constexpr int32_t kUnknown = -2;
  static constexpr int32_t kNoState = -1;
  static constexpr uint32_t kNothing = ~uint32_t{0};  // behind all positions: the text may end

  // All stacks with `position` on their top and those of a set below it.
  struct Entry {
    uint32_t position;
    uint32_t below;
  };
  using Entries = std::vector<Entry>;
  // A set is kept once: equal sets have the same number.
  struct Set {
    Entries entries;  // in the order of their positions, none of which comes twice
    int32_t state = kNoState;
  };
  struct State {
    uint32_t set;
    std::array<int32_t, 256> next;
  };

  const Entries& EntriesOf(int32_t state) const {
    return sets_[states_[static_cast<size_t>(state)].set].entries;
  }
  uint32_t Keep(Entries entries);
  uint32_t Union(uint32_t one, uint32_t other);
  Entries Expand(Entries open);
  int32_t StateOfSet(uint32_t set);
  int32_t FindNext(int32_t state, unsigned char byte);
  void AppendTo(uint32_t set, std::map<uint32_t, uint32_t>* index_of, Stacks* stacks) const;

  Grammar grammar_;
  std::vector<State> states_;
  std::vector<Set> sets_;
  std::unordered_map<std::string, uint32_t> known_;           // sets by the bytes of their entries
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> unions_;  // the lower number first
};

}  // namespace convene::grammar
