#include "text/bpe.h"

#include <bit>
#include <queue>

#include "base/quote.h"
#include "base/utf8.h"

namespace convene::text {
namespace {

constexpr int32_t kNone = -1;

Error UnknownMergeToken(const std::string& token) {
  return Error{fmt::format("a merge needs the token {}, which the vocabulary lacks", Quote(token))};
}

std::string_view FirstCharacter(std::string_view token) {
  size_t end = 0;
  if (!token.empty()) ReadCodePoint(token, &end);
  return token.substr(0, end);
}

std::string_view LastCharacter(std::string_view token) {
  return token.empty() ? token : token.substr(PreviousCharacter(token, token.size()));
}

}  // namespace

Bpe::MergeTable::MergeTable(size_t num_merges) : slots_(std::bit_ceil(2 * num_merges + 2)) {}

size_t Bpe::MergeTable::SlotOf(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  // Multiplicative hashing: the high half of the product depends on all bits of the pair.
  size_t slot = (pair * 0x9e3779b97f4a7c15u >> 32) & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) slot = (slot + 1) & mask;
  return slot;
}

void Bpe::MergeTable::Insert(int32_t left, int32_t right, Product product) {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  slots_[SlotOf(pair)] = {.pair = pair, .product = product};
}

const Bpe::Product* Bpe::MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  const Slot& slot = slots_[SlotOf(pair)];
  return slot.pair == kEmpty ? nullptr : &slot.product;
}

Bpe::Bpe(Vocabulary vocabulary, size_t num_merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      merges_(num_merges),
      neighbours_(num_merges) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(vocabulary_.IdOf(fmt::format("<0x{:02X}>", byte)).value_or(kNone));
  }
}

Result<Bpe> Bpe::Create(Vocabulary vocabulary, const std::vector<Merge>& merges,
                        BpeOptions options) {
  Bpe bpe(std::move(vocabulary), merges.size(), std::move(options));
  const std::string& prefix = bpe.options_.continuing_subword_prefix;
  int32_t rank = 0;
  std::string product;
  for (const Merge& merge : merges) {
    const auto left = bpe.vocabulary_.IdOf(merge.left);
    if (!left) return UnknownMergeToken(merge.left);
    const auto right = bpe.vocabulary_.IdOf(merge.right);
    if (!right) return UnknownMergeToken(merge.right);
    product = merge.left;
    product.append(merge.right, std::min(prefix.size(), merge.right.size()));
    const auto id = bpe.vocabulary_.IdOf(product);
    if (!id) return UnknownMergeToken(product);
    bpe.merges_.Insert(*left, *right, {.rank = rank++, .id = *id});
    const auto last = bpe.vocabulary_.IdOf(LastCharacter(merge.left));
    const auto first = bpe.vocabulary_.IdOf(FirstCharacter(merge.right));
    if (last && first) bpe.neighbours_.Insert(*last, *first, {});
  }
  return bpe;
}

Status Bpe::Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.IdOf(word)) {
      ids->push_back(*id);
      return {};
    }
  }
  const bool is_decorated =
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  if (word.size() <= kMaxCachedWordBytes || is_decorated) return EncodePart(word, cache, ids);

  // SentencePiece vocabularies see the whole text as one word. Cut it between known characters that
  // no token has side by side: no merge can span them.
  size_t begin = 0;
  std::optional<int32_t> previous;
  for (size_t at = 0; at < word.size();) {
    const size_t character_begin = at;
    ReadCodePoint(word, &at);
    const auto current = vocabulary_.IdOf(word.substr(character_begin, at - character_begin));
    if (previous && current && neighbours_.Find(*previous, *current) == nullptr) {
      const auto part = word.substr(begin, character_begin - begin);
      if (Status status = EncodePart(part, cache, ids); !status) return status;
      begin = character_begin;
    }
    previous = current;
  }
  return EncodePart(word.substr(begin), cache, ids);
}

// A word, or a part of it that merges with nothing around it.
Status Bpe::EncodePart(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const {
  const bool is_cached = word.size() <= kMaxCachedWordBytes;
  if (is_cached) {
    const auto found = cache->find(word);
    if (found != cache->end()) {
      ids->insert(ids->end(), found->second.begin(), found->second.end());
      return {};
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  if (Status status = AppendCharacters(word, &symbols); !status) return status;
  MergeAll(&symbols);
  const size_t first = ids->size();
  for (const Symbol& symbol : symbols) {
    if (!symbol.is_merged) ids->push_back(symbol.id);
  }
  if (is_cached && cache->size() < kMaxCachedWords) {
    cache->emplace(word, std::vector<int32_t>(ids->begin() + first, ids->end()));
  }
  return {};
}

// Appends the byte tokens of `spelling` if the vocabulary has them all.
bool Bpe::AppendBytes(std::string_view spelling, std::vector<Symbol>* symbols) const {
  for (const char byte : spelling) {
    if (byte_ids_[static_cast<unsigned char>(byte)] == kNone) return false;
  }
  for (const char byte : spelling) {
    symbols->push_back({.id = byte_ids_[static_cast<unsigned char>(byte)]});
  }
  return true;
}

// One symbol per character, byte or unknown token, linked.
Status Bpe::AppendCharacters(std::string_view word, std::vector<Symbol>* symbols) const {
  // The unknown token waits for the next known character, so that neighbours can be fused; byte
  // tokens pass it, as they do in the reference.
  int32_t pending_unk = kNone;
  const auto flush_unk = [&] {
    if (pending_unk != kNone) symbols->push_back({.id = pending_unk});
    pending_unk = kNone;
  };
  std::string decorated;
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    ReadCodePoint(word, &at);
    std::string_view spelling = word.substr(begin, at - begin);
    const bool has_prefix = begin > 0 && !options_.continuing_subword_prefix.empty();
    const bool has_suffix = at == word.size() && !options_.end_of_word_suffix.empty();
    if (has_prefix || has_suffix) {
      decorated = fmt::format("{}{}{}", has_prefix ? options_.continuing_subword_prefix : "",
                              spelling, has_suffix ? options_.end_of_word_suffix : "");
      spelling = decorated;
    }
    if (const auto id = vocabulary_.IdOf(spelling)) {
      flush_unk();
      symbols->push_back({.id = *id});
      continue;
    }
    if (options_.byte_fallback && AppendBytes(spelling, symbols)) continue;
    if (!options_.unk_token) continue;  // such characters are dropped
    if (!options_.fuse_unk) flush_unk();
    if (pending_unk != kNone) continue;
    const auto unk = vocabulary_.IdOf(*options_.unk_token);
    if (!unk) {
      return Error{
          fmt::format("the text has a character outside the vocabulary, {}, and the unknown token "
                      "{} is no token",
                      Quote(spelling), Quote(*options_.unk_token))};
    }
    pending_unk = *unk;
  }
  flush_unk();
  const auto num_symbols = static_cast<int32_t>(symbols->size());
  for (int32_t i = 0; i < num_symbols; ++i) {
    (*symbols)[i].previous = i - 1;
    (*symbols)[i].next = i + 1 < num_symbols ? i + 1 : kNone;
  }
  return {};
}

// A queue of the pairs that can be merged and links between symbols: n log n for a word of n
// characters, also where all are equal.
void Bpe::MergeAll(std::vector<Symbol>* symbols_in) const {
  std::vector<Symbol>& symbols = *symbols_in;
  struct Candidate {
    int32_t rank;
    int32_t position;  // of the left symbol
    int32_t product;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{},
                                                                               std::move(storage));
  const auto consider = [&](int32_t position) {
    if (position == kNone || symbols[position].next == kNone) return;
    const Product* product = merges_.Find(symbols[position].id, symbols[symbols[position].next].id);
    if (product != nullptr) queue.push({product->rank, position, product->id});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) consider(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.is_merged || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    // The pair may have changed since it was queued.
    const Product* product = merges_.Find(left.id, right.id);
    if (product == nullptr || product->id != best.product) continue;
    left.id = best.product;
    left.next = right.next;
    right.is_merged = true;
    if (left.next != kNone) symbols[left.next].previous = best.position;
    consider(left.previous);
    consider(best.position);
  }
}

}  // namespace convene::text
