#include "text/unigram.h"

#include <algorithm>
#include <numeric>

#include "base/quote.h"
#include "base/utf8.h"

namespace convene::text {
namespace {

constexpr int32_t kNoPiece = -1;
// How much worse an unknown character is than the worst token.
constexpr double kUnknownPenalty = 10;
// Of a word without a place that no token spans: 24 bytes for each of these.
constexpr size_t kMaxUncutBytes = size_t{1} << 26;

}  // namespace

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options)
    : vocabulary_(std::move(vocabulary)), scores_(std::move(scores)), options_(options) {
  const auto worst = std::min_element(scores_.begin(), scores_.end());
  if (worst != scores_.end()) unknown_score_ = *worst - kUnknownPenalty;
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(vocabulary_.IdOf(fmt::format("<0x{:02X}>", byte)).value_or(kNoPiece));
  }
}

Result<Unigram> Unigram::Create(Vocabulary vocabulary, std::vector<double> scores,
                                UnigramOptions options) {
  CHECK(scores.size() == vocabulary.tokens().size(), "{} scores", scores.size());
  if (options.unk_id && vocabulary.TextOf(*options.unk_id) == nullptr) {
    return Error{fmt::format("the unknown token has the id {}, but the vocabulary has {} tokens",
                             *options.unk_id, scores.size())};
  }
  Unigram unigram(std::move(vocabulary), std::move(scores), options);
  if (Status status = unigram.BuildTrie(); !status) return status.error();
  return unigram;
}

Status Unigram::BuildTrie() {
  const std::vector<Token>& tokens = vocabulary_.tokens();
  std::vector<int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int32_t a, int32_t b) { return tokens[a].text < tokens[b].text; });
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string& text = tokens[order[i]].text;
    if (text.size() > kMaxUnigramTokenBytes) {
      return Error{fmt::format("the token {} has {} bytes; at most {} are allowed", Quote(text),
                               text.size(), kMaxUnigramTokenBytes)};
    }
    if (i > 0 && text == tokens[order[i - 1]].text) {
      return Error{fmt::format("the vocabulary has the token {} twice", Quote(text))};
    }
  }
  // A node is a run of sorted tokens that begin alike; its children are runs within it.
  struct Run {
    size_t begin;
    size_t end;
    size_t length;  // bytes that they share
  };
  std::vector<Run> runs{{.begin = 0, .end = order.size(), .length = 0}};
  for (size_t node = 0; node < runs.size(); ++node) {
    Run run = runs[node];
    const auto text = [&](size_t i) -> const std::string& { return tokens[order[i]].text; };
    if (run.begin < run.end && text(run.begin).size() == run.length) {
      if (run.length > 0) trie_[node].token = tokens[order[run.begin]].id;  // no empty tokens
      ++run.begin;
    }
    trie_[node].first_child = static_cast<int32_t>(runs.size());
    for (size_t begin = run.begin; begin < run.end;) {
      size_t end = begin + 1;
      while (end < run.end && text(end)[run.length] == text(begin)[run.length]) ++end;
      runs.push_back({.begin = begin, .end = end, .length = run.length + 1});
      trie_.push_back({.byte = static_cast<uint8_t>(text(begin)[run.length])});
      ++trie_[node].num_children;
      begin = end;
    }
  }
  return {};
}

int32_t Unigram::Child(int32_t node, uint8_t byte) const {
  const auto first = trie_.begin() + trie_[node].first_child;
  const auto last = first + trie_[node].num_children;
  const auto found = std::lower_bound(
      first, last, byte, [](const TrieNode& child, uint8_t wanted) { return child.byte < wanted; });
  if (found == last || found->byte != byte) return kNoPiece;
  return static_cast<int32_t>(found - trie_.begin());
}

Status Unigram::Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const {
  if (word.size() > kMaxCachedWordBytes) return EncodeWord(word, ids);
  const auto found = cache->find(word);
  if (found != cache->end()) {
    ids->insert(ids->end(), found->second.begin(), found->second.end());
    return {};
  }
  const size_t first = ids->size();
  if (Status status = EncodeWord(word, ids); !status) return status;
  if (cache->size() < kMaxCachedWords) {
    cache->emplace(word, std::vector<int32_t>(ids->begin() + first, ids->end()));
  }
  return {};
}

// Viterbi's algorithm. Where no token spans a place, all ways lead through it: what is before is
// decided, and forgotten but for its score, so that a text that is one word needs little memory.
Status Unigram::EncodeWord(std::string_view word, std::vector<int32_t>* ids) const {
  std::vector<Arrival> arrivals;  // at the bytes of the word from `decided` on
  std::vector<Part> parts;
  size_t decided = 0;
  size_t unknown_begin = 0;  // of the unknown text that ends at `decided`
  const auto flush_unknown = [&](size_t end) {
    if (unknown_begin < end) AppendUnknown(word.substr(unknown_begin, end - unknown_begin), ids);
  };
  const auto decide = [&](size_t end) {
    parts.clear();
    for (size_t at = end; at > decided;) {
      const Arrival& arrival = arrivals[at - decided];
      parts.push_back({.begin = arrival.begin, .end = at, .token = arrival.token});
      at = arrival.begin;
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (options_.unk_id && part->token == *options_.unk_id) continue;  // neighbours are fused
      flush_unknown(part->begin);
      ids->push_back(part->token);
      unknown_begin = part->end;
    }
    arrivals.front() = arrivals[end - decided];
    decided = end;
  };

  arrivals.emplace_back();
  size_t farthest = 0;
  for (size_t at = 0; at < word.size();) {
    if (at == farthest && at > decided) {
      decide(at);
      arrivals.resize(1);
    }
    if (at - decided > kMaxUncutBytes) {
      return Error{
          fmt::format("a word of {} bytes; more than {} that can nowhere be cut are not "
                      "supported; give the text in parts",
                      word.size(), kMaxUncutBytes)};
    }
    const double score = arrivals[at - decided].score;
    const auto arrive = [&](size_t end, int32_t token, double token_score) {
      farthest = std::max(farthest, end);
      if (arrivals.size() <= end - decided) arrivals.resize(end - decided + 1);
      Arrival& arrival = arrivals[end - decided];
      const bool is_better = token_score + score > arrival.score;
      if (arrival.token != kNoPiece && !is_better) return;  // the first of equal ones stays
      arrival = {.score = token_score + score, .begin = at, .token = token};
    };
    size_t character_end = at;
    ReadCodePoint(word, &character_end);
    bool has_character = false;
    int32_t node = 0;
    for (size_t end = at; end < word.size();) {
      node = Child(node, static_cast<uint8_t>(word[end++]));
      if (node == kNoPiece) break;
      const int32_t token = trie_[node].token;
      if (token == kNoPiece) continue;
      arrive(end, token, scores_[token]);
      has_character = has_character || end == character_end;
    }
    if (!has_character) {
      if (!options_.unk_id) {
        return Error{
            fmt::format("the text has a character outside the vocabulary, {}, and the "
                        "tokenizer has no unknown token",
                        Quote(word.substr(at, character_end - at)))};
      }
      arrive(character_end, *options_.unk_id, unknown_score_);
    }
    at = character_end;
  }
  decide(word.size());
  flush_unknown(word.size());
  return {};
}

// Unknown characters that follow each other are looked up together.
void Unigram::AppendUnknown(std::string_view text, std::vector<int32_t>* ids) const {
  if (const auto id = vocabulary_.IdOf(text)) {
    ids->push_back(*id);
    return;
  }
  const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (options_.byte_fallback &&
      std::all_of(text.begin(), text.end(), [&](char b) { return id_of_byte(b) != kNoPiece; })) {
    for (const char byte : text) ids->push_back(id_of_byte(byte));
    return;
  }
  ids->push_back(*options_.unk_id);
}

}  // namespace convene::text
