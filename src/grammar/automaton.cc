#include "grammar/automaton.h"

#include <algorithm>
#include <set>
#include <utility>

namespace convene::grammar {
namespace {

using Kind = Grammar::Element::Kind;

}  // namespace

Automaton::Automaton(Grammar grammar) : grammar_(std::move(grammar)) { Forget(); }

void Automaton::Forget() {
  states_.clear();
  sets_.clear();
  known_.clear();
  unions_.clear();
  Keep({{kNothing, 0}});  // set 0: of the empty stack
}

Stacks Automaton::Start() {
  Entries open;
  for (const uint32_t begin : grammar_.alternatives(grammar_.root())) open.push_back({begin, 0});
  return StacksOf(StateOfSet(Keep(Expand(std::move(open)))));
}

uint32_t Automaton::Keep(Entries entries) {
  std::string key(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry));
  const auto [known, is_new] =
      known_.try_emplace(std::move(key), static_cast<uint32_t>(sets_.size()));
  if (is_new) sets_.push_back({std::move(entries)});
  return known->second;
}

// By recursion as deep as the stacks are, which are as deep as a schema may be nested.
uint32_t Automaton::Union(uint32_t one, uint32_t other) {
  if (one == other) return one;
  const std::pair<uint32_t, uint32_t> pair = std::minmax(one, other);
  if (const auto known = unions_.find(pair); known != unions_.end()) return known->second;
  const Entries a = sets_[one].entries;
  const Entries b = sets_[other].entries;
  Entries all;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (j == b.size() || (i < a.size() && a[i].position < b[j].position)) {
      all.push_back(a[i++]);
    } else if (i == a.size() || b[j].position < a[i].position) {
      all.push_back(b[j++]);
    } else {
      all.push_back({a[i].position, Union(a[i].below, b[j].below)});
      ++i;
      ++j;
    }
  }
  return unions_[pair] = Keep(std::move(all));
}

// Until each entry has a set of bytes on its top, or is empty.
Automaton::Entries Automaton::Expand(Entries open) {
  std::map<uint32_t, uint32_t> expanded;  // what is below, by position
  std::set<std::pair<uint32_t, uint32_t>> seen;
  while (!open.empty() && seen.size() < kMaxEntries) {
    const auto [position, below] = open.back();
    open.pop_back();
    if (!seen.emplace(position, below).second) continue;
    const bool is_nothing = position == kNothing;
    const Kind kind = is_nothing ? Kind::kBytes : grammar_.element(position).kind;
    if (kind == Kind::kBytes) {
      const auto [same, is_new] = expanded.try_emplace(position, below);
      if (!is_new) same->second = Union(same->second, below);
    } else if (kind == Kind::kEnd) {
      for (const Entry& entry : sets_[below].entries) open.push_back(entry);
    } else {
      // Nothing behind the rule: its end is this one's, so that repetitions take no room.
      const bool is_last = grammar_.element(position + 1).kind == Kind::kEnd;
      const uint32_t behind = is_last ? below : Keep({{position + 1, below}});
      for (const uint32_t begin : grammar_.alternatives(grammar_.element(position).index)) {
        open.push_back({begin, behind});
      }
    }
  }
  Entries entries;
  for (const auto& [position, below] : expanded) entries.push_back({position, below});
  return entries;
}

int32_t Automaton::StateOfSet(uint32_t set) {
  int32_t& state = sets_[set].state;
  if (state == kNoState) {
    state = static_cast<int32_t>(states_.size());
    states_.push_back({.set = set, .next = {}});
    states_.back().next.fill(kUnknown);
  }
  return state;
}

int32_t Automaton::FindNext(int32_t state, unsigned char byte) {
  Entries open;
  for (const Entry& entry : EntriesOf(state)) {
    if (entry.position != kNothing && grammar_.Matches(grammar_.element(entry.position), byte)) {
      open.push_back({entry.position + 1, entry.below});
    }
  }
  int32_t found = kDead;
  if (!open.empty()) {
    Entries next = Expand(std::move(open));
    // Of a rule without alternatives nothing comes.
    if (!next.empty()) found = StateOfSet(Keep(std::move(next)));
  }
  states_[static_cast<size_t>(state)].next[byte] = found;
  return found;
}

Stacks Automaton::StacksOf(int32_t state) const {
  Stacks stacks;
  std::map<uint32_t, uint32_t> index_of;
  AppendTo(states_[static_cast<size_t>(state)].set, &index_of, &stacks);
  return stacks;
}

void Automaton::AppendTo(uint32_t set, std::map<uint32_t, uint32_t>* index_of,
                         Stacks* stacks) const {
  if (index_of->contains(set)) return;
  Stacks::value_type entries;
  for (const Entry& entry : sets_[set].entries) {
    if (entry.below != set) AppendTo(entry.below, index_of, stacks);
    entries.emplace_back(entry.position, entry.below == set ? 0 : index_of->at(entry.below));
  }
  (*index_of)[set] = static_cast<uint32_t>(stacks->size());
  stacks->push_back(std::move(entries));
}

int32_t Automaton::StateOf(const Stacks& stacks) {
  std::vector<uint32_t> sets;
  for (const auto& stack : stacks) {
    Entries entries;
    for (const auto& [position, below] : stack) {
      entries.push_back({position, position == kNothing ? 0 : sets[below]});
    }
    sets.push_back(Keep(std::move(entries)));
  }
  return StateOfSet(sets.back());
}

}  // namespace convene::grammar
