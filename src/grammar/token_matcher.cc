#include "grammar/token_matcher.h"

#include <algorithm>
#include <utility>

namespace convene::grammar {
namespace {

constexpr size_t kBits = 64;
constexpr int32_t kMaxStates = 16384;  // of about a KiB each
constexpr size_t kMaxSets = 131072;    // of about 100 bytes each
constexpr size_t kMaxMasks = 512;      // of 20 KiB each for 150,000 tokens

void SetBit(std::vector<uint64_t>* mask, int32_t bit) {
  (*mask)[static_cast<size_t>(bit) / kBits] |= uint64_t{1} << (static_cast<size_t>(bit) % kBits);
}

}  // namespace

TokenMasks::TokenMasks(Grammar grammar, std::shared_ptr<const TokenTrie> trie,
                       std::vector<int32_t> end_tokens)
    : automaton_(std::move(grammar)),
      trie_(std::move(trie)),
      end_tokens_(std::move(end_tokens)),
      path_(trie_->max_depth() + 1) {}

std::span<const uint64_t> TokenMasks::MaskOf(int32_t state) {
  const auto [entry, is_new] = masks_.try_emplace(state);
  std::vector<uint64_t>& mask = entry->second;
  if (!is_new) return mask;
  mask.assign((static_cast<size_t>(trie_->num_ids()) + kBits - 1) / kBits, 0);
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  path_[0] = state;
  for (uint32_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const int32_t next = automaton_.Next(path_[node.depth], node.byte);
    if (next == Automaton::kDead) {
      i = node.end;
      continue;
    }
    path_[node.depth + 1] = next;
    for (uint32_t k = 0; k < node.num_tokens; ++k)
      SetBit(&mask, trie_->token(node.first_token + k));
    ++i;
  }
  if (automaton_.MayEnd(state)) {
    for (const int32_t token : end_tokens_) {
      if (token >= 0 && token < trie_->num_ids()) SetBit(&mask, token);
    }
  }
  return mask;
}

bool TokenMasks::ForgetIfLarge() {
  if (automaton_.num_states() < kMaxStates && automaton_.num_sets() < kMaxSets &&
      masks_.size() < kMaxMasks) {
    return false;
  }
  automaton_.Forget();
  masks_.clear();
  ++generation_;
  return true;
}

TokenMatcher::TokenMatcher(std::shared_ptr<TokenMasks> masks)
    : masks_(std::move(masks)), stacks_(masks_->automaton_.Start()) {}

int32_t TokenMatcher::State() {
  masks_->ForgetIfLarge();
  if (state_ < 0 || generation_ != masks_->generation_) {
    state_ = masks_->automaton_.StateOf(stacks_);
    generation_ = masks_->generation_;
  }
  return state_;
}

std::span<const uint64_t> TokenMatcher::Allowed() { return masks_->MaskOf(State()); }

bool TokenMatcher::AllowsAny() {
  return std::ranges::any_of(Allowed(), [](uint64_t word) { return word != 0; });
}

void TokenMatcher::Advance(int32_t token) {
  const std::string& bytes = masks_->trie_->BytesOf(token);
  int32_t state = State();
  for (const char byte : bytes) {
    const int32_t next = masks_->automaton_.Next(state, static_cast<unsigned char>(byte));
    if (next == Automaton::kDead) return;  // an end of text that is ignored, with text of its own
    state = next;
  }
  state_ = state;
  stacks_ = masks_->automaton_.StacksOf(state);
}

bool TokenMatcher::IsComplete() {
  const int32_t state = State();
  return masks_->automaton_.MayEnd(state) && !masks_->automaton_.MayGoOn(state);
}

}  // namespace convene::grammar
