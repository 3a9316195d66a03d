#include "grammar/automaton.h"

#include <algorithm>
#include <utility>

namespace convene::grammar {
namespace {

using Kind = Grammar::Element::Kind;

// Alternatives that are followed at once. Beyond them, which only schemas with hundreds of
// alternatives reach, some texts that may be are not found; none is found that may not be.
constexpr size_t kMaxStacks = 4096;

std::string KeyOf(const Stacks& stacks) {
  std::string key;
  for (const std::vector<uint32_t>& stack : stacks) {
    const auto size = static_cast<uint32_t>(stack.size());
    key.append(reinterpret_cast<const char*>(&size), sizeof(size));
    key.append(reinterpret_cast<const char*>(stack.data()), stack.size() * sizeof(uint32_t));
  }
  return key;
}

void SortUnique(Stacks* stacks) {
  std::ranges::sort(*stacks);
  const auto rest = std::ranges::unique(*stacks);
  stacks->erase(rest.begin(), rest.end());
}

}  // namespace

Automaton::Automaton(Grammar grammar) : grammar_(std::move(grammar)) {}

Stacks Automaton::Start() const {
  Stacks stacks;
  for (const uint32_t begin : grammar_.alternatives(grammar_.root())) Expand({begin}, &stacks);
  SortUnique(&stacks);
  return stacks;
}

// Until each stack has a set of bytes on its top, or is empty: the text may end.
void Automaton::Expand(std::vector<uint32_t> stack, Stacks* expanded) const {
  Stacks open = {std::move(stack)};
  while (!open.empty() && expanded->size() < kMaxStacks) {
    std::vector<uint32_t> top = std::move(open.back());
    open.pop_back();
    while (!top.empty() && grammar_.element(top.back()).kind == Kind::kEnd) top.pop_back();
    if (top.empty() || grammar_.element(top.back()).kind == Kind::kBytes) {
      expanded->push_back(std::move(top));
      continue;
    }
    const uint32_t rule = grammar_.element(top.back()).index;
    ++top.back();
    // Nothing behind the rule: its end is this one's, so that repetitions take no room.
    if (grammar_.element(top.back()).kind == Kind::kEnd) top.pop_back();
    for (const uint32_t begin : grammar_.alternatives(rule)) {
      open.push_back(top);
      open.back().push_back(begin);
    }
  }
}

int32_t Automaton::StateOf(const Stacks& stacks) {
  const auto [entry, is_new] =
      known_.try_emplace(KeyOf(stacks), static_cast<int32_t>(states_.size()));
  if (is_new) {
    states_.push_back({.stacks = stacks, .next = {}});
    states_.back().next.fill(kUnknown);
  }
  return entry->second;
}

int32_t Automaton::FindNext(int32_t state, unsigned char byte) {
  const auto idx = static_cast<size_t>(state);
  Stacks next;
  for (const std::vector<uint32_t>& stack : states_[idx].stacks) {
    if (stack.empty() || !grammar_.Matches(grammar_.element(stack.back()), byte)) continue;
    std::vector<uint32_t> moved = stack;
    ++moved.back();
    Expand(std::move(moved), &next);
  }
  SortUnique(&next);
  const int32_t found = next.empty() ? kDead : StateOf(next);
  states_[idx].next[byte] = found;
  return found;
}

bool Automaton::MayEnd(int32_t state) const { return StacksOf(state).front().empty(); }

bool Automaton::MayGoOn(int32_t state) const { return !StacksOf(state).back().empty(); }

void Automaton::Forget() {
  states_.clear();
  known_.clear();
}

}  // namespace convene::grammar
