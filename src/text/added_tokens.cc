#include "text/added_tokens.h"

#include <algorithm>

#include "base/quote.h"
#include "base/utf8.h"
#include "text/code_points.h"

namespace convene::text {
namespace {

// Whether `character`, one character, is a part of words to the package.
bool IsWordCharacter(std::string_view character) {
  // Oniguruma counts ² ³ ¹ ¼ ½ ¾ in and the joiners out.
  static const Regex word = *Regex::Compile(R"([\w\x{200c}\x{200d}&&[^²³¹¼½¾]])");
  std::vector<Match> matches;
  return word.FindAll(character, &matches) && !matches.empty();
}

bool EndsWithWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(text.substr(PreviousCharacter(text, text.size())));
}

bool BeginsWithWord(std::string_view text) {
  size_t end = 0;
  if (!text.empty()) ReadCodePoint(text, &end);
  return end > 0 && IsWordCharacter(text.substr(0, end));
}

}  // namespace

void AddedTokens::Trie::Insert(std::string_view key, int32_t value) {
  if (key.empty()) return;
  int32_t node = 0;
  for (const char c : key) {
    auto& children = nodes_[node].children;
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const auto& entry) { return entry.first == c; });
    if (child != children.end()) {
      node = child->second;
      continue;
    }
    const auto created = static_cast<int32_t>(nodes_.size());
    children.emplace_back(c, created);
    nodes_.emplace_back();
    node = created;
  }
  // Of tokens that are spelt alike once they are normalized, the first is found.
  if (nodes_[node].value == -1) nodes_[node].value = value;
}

std::pair<int32_t, size_t> AddedTokens::Trie::LongestPrefix(std::string_view text) const {
  std::pair<int32_t, size_t> longest{-1, 0};
  int32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& children = nodes_[node].children;
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const auto& entry) { return entry.first == text[i]; });
    if (child == children.end()) break;
    node = child->second;
    if (nodes_[node].value != -1) longest = {nodes_[node].value, i + 1};
  }
  return longest;
}

Result<AddedTokens> AddedTokens::Create(const std::vector<AddedToken>& tokens,
                                        const Vocabulary& vocabulary,
                                        const Normalizer& normalizer) {
  AddedTokens added;
  auto next_id = static_cast<int64_t>(vocabulary.num_tokens());
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    if (token.content.size() > kMaxAddedTokenBytes) {
      return Error{fmt::format("the added token {} has {} bytes; at most {} are allowed",
                               Quote(token.content), token.content.size(), kMaxAddedTokenBytes)};
    }
    std::optional<int32_t> id = added.IdOf(token.content);
    if (!id) id = vocabulary.IdOf(token.content);
    if (!id) {
      if (next_id > kMaxTokenId) {
        return Error{fmt::format("more than {} tokens", kMaxTokenId + 1)};
      }
      id = static_cast<int32_t>(next_id++);
    }
    NormalizedText spelling{.text = token.content};
    if (token.normalized) {
      if (Status status = normalizer.Apply(&spelling); !status) return status.error();
    }
    if (token.special) added.special_contents_.insert(token.content);

    Entry entry{.token = token, .spelling = std::move(spelling.text), .id = *id};
    // Two contents may share an id only by being equal: the later entry replaces the former, all
    // but a normalized spelling.
    const auto [found, is_new] =
        added.entry_of_content_.try_emplace(token.content, added.entries_.size());
    if (is_new) {
      added.entries_.push_back(std::move(entry));
      continue;
    }
    Entry& former = added.entries_[found->second];
    if (!token.normalized) entry.spelling = std::move(former.spelling);
    former = std::move(entry);
  }
  for (size_t i = 0; i < added.entries_.size(); ++i) {
    const Entry& entry = added.entries_[i];
    if (entry.token.normalized) {
      added.normalized_.Insert(entry.spelling, static_cast<int32_t>(i));
    } else {
      added.original_.Insert(entry.token.content, static_cast<int32_t>(i));
    }
  }
  return added;
}

std::optional<int32_t> AddedTokens::IdOf(std::string_view content) const {
  const auto found = entry_of_content_.find(std::string(content));
  if (found == entry_of_content_.end()) return std::nullopt;
  return entries_[found->second].id;
}

// Appends pieces for `text`, which lies at `offset` in theirs.
void AddedTokens::Cut(std::string_view text, size_t offset, const Trie& trie, bool parse_special,
                      std::vector<Piece>* pieces) const {
  const auto append = [&](size_t begin, size_t end, int32_t token) {
    pieces->push_back({.begin = offset + begin, .end = offset + end, .token = token});
  };
  size_t done = 0;
  size_t at = trie.empty() ? text.size() : 0;
  while (at < text.size()) {
    const auto [index, length] = trie.LongestPrefix(text.substr(at));
    if (index == -1) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + length;
    at = end;  // a match that is passed over hides shorter ones
    const AddedToken& token = entries_[index].token;
    if (!parse_special && IsSpecial(token.content)) continue;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = std::max(SkipSpaceBackward(text, begin), done);
    if (token.rstrip) end = SkipSpaceForward(text, end);
    if (done < begin) append(done, begin, kNoToken);
    // Where the token before has taken all of it, there is no token.
    if (begin < end) append(begin, end, entries_[index].id);
    done = end;
  }
  if (done < text.size()) append(done, text.size(), kNoToken);
}

Result<Pieces> AddedTokens::Extract(std::string_view text, const Normalizer& normalizer,
                                    bool parse_special) const {
  std::vector<Piece> originals;
  Cut(text, 0, original_, parse_special, &originals);
  Pieces result;
  result.text.reserve(text.size());
  for (const Piece& original : originals) {
    if (original.token != kNoToken) {
      result.pieces.push_back(
          {.begin = result.text.size(), .end = result.text.size(), .token = original.token});
      continue;
    }
    NormalizedText normalized{
        .text = std::string(text.substr(original.begin, original.end - original.begin))};
    if (original.begin == 0) ReadCodePoint(normalized.text, &normalized.num_origin_bytes);
    if (Status status = normalizer.Apply(&normalized); !status) return status.error();
    if (original.begin == 0) result.num_origin_bytes = normalized.num_origin_bytes;
    Cut(normalized.text, result.text.size(), normalized_, parse_special, &result.pieces);
    result.text += normalized.text;
  }
  return result;
}

}  // namespace convene::text
