#include "text/pre_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/growth_limit.h"

namespace convene::text {
namespace {

// A part of a piece: one match or what lies between two.
struct Part {
  size_t begin;
  size_t end;
  bool is_match;
};

void FindCharacters(CodePointTest test, std::string_view text, std::vector<Match>* matches) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (test(ReadCodePoint(text, &at))) matches->push_back({.begin = begin, .end = at});
  }
}

// Appends parts that cover `text`, empty matches among them.
Status FindParts(const Split& split, std::string_view text, std::vector<Match>* scratch,
                 std::vector<Part>* parts) {
  scratch->clear();
  if (const auto* pattern = std::get_if<Pattern>(&split.pattern)) {
    if (Status status = pattern->FindAll(text, scratch); !status) return status;
  } else {
    FindCharacters(std::get<CodePointTest>(split.pattern), text, scratch);
  }
  size_t at = 0;
  for (const Match& match : *scratch) {
    if (at < match.begin) parts->push_back({at, match.begin, split.invert});
    parts->push_back({match.begin, match.end, !split.invert});
    at = match.end;
  }
  if (at < text.size()) parts->push_back({at, text.size(), split.invert});
  return {};
}

// Joins parts where `joins(previous is a match, is a match)`.
template <typename Joins>
void JoinParts(const Joins& joins, std::vector<Part>* parts) {
  size_t num_joined = 0;
  bool previous_is_match = false;
  for (const Part& part : *parts) {
    if (num_joined > 0 && joins(previous_is_match, part.is_match)) {
      Part& last = (*parts)[num_joined - 1];
      last.begin = std::min(last.begin, part.begin);
      last.end = std::max(last.end, part.end);
    } else {
      (*parts)[num_joined++] = part;
    }
    previous_is_match = part.is_match;
  }
  parts->resize(num_joined);
}

void ApplyBehavior(SplitBehavior behavior, std::vector<Part>* parts) {
  const auto is_new_match = [](bool previous, bool current) { return current && !previous; };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(*parts, [](const Part& part) { return part.is_match; });
      return;
    case SplitBehavior::kContiguous:
      JoinParts([](bool previous, bool current) { return current == previous; }, parts);
      return;
    case SplitBehavior::kMergedWithPrevious:
      JoinParts(is_new_match, parts);
      return;
    case SplitBehavior::kMergedWithNext:
      std::reverse(parts->begin(), parts->end());
      JoinParts(is_new_match, parts);
      std::reverse(parts->begin(), parts->end());
      return;
  }
}

Status ApplyStep(const Split& split, Pieces* pieces) {
  std::vector<Piece> cut;
  cut.reserve(pieces->pieces.size());
  std::vector<Match> matches;
  std::vector<Part> parts;
  for (const Piece& piece : pieces->pieces) {
    if (piece.token != kNoToken) {
      cut.push_back(piece);
      continue;
    }
    parts.clear();
    const auto text = std::string_view(pieces->text).substr(piece.begin, piece.end - piece.begin);
    if (Status status = FindParts(split, text, &matches, &parts); !status) return status;
    ApplyBehavior(split.behavior, &parts);
    for (const Part& part : parts) {
      if (part.begin == part.end) continue;
      cut.push_back({.begin = piece.begin + part.begin, .end = piece.begin + part.end});
    }
  }
  pieces->pieces = std::move(cut);
  return {};
}

// Rewrites every piece that is no token as prefix(text, is_first) + map(text), where map goes
// character by character and is_first says that the original text begins with this piece.
template <typename Prefix, typename Map>
void RewritePieces(const Prefix& prefix, const Map& map, Pieces* pieces) {
  std::string result;
  result.reserve(pieces->text.size() + pieces->text.size() / 4);
  const size_t old_origin_bytes = std::exchange(pieces->num_origin_bytes, 0);
  for (Piece& piece : pieces->pieces) {
    const auto text = std::string_view(pieces->text).substr(piece.begin, piece.end - piece.begin);
    const size_t begin = result.size();
    if (piece.token == kNoToken) {
      const bool is_first = piece.begin < old_origin_bytes;
      const size_t num_origin_bytes =
          is_first ? std::min(old_origin_bytes - piece.begin, text.size()) : 0;
      result += prefix(text, is_first);
      map(text.substr(0, num_origin_bytes), &result);
      if (is_first) pieces->num_origin_bytes = result.size();
      map(text.substr(num_origin_bytes), &result);
    }
    piece.begin = begin;
    piece.end = result.size();
  }
  pieces->text = std::move(result);
}

std::string_view NoPrefix(std::string_view /*text*/, bool /*is_first*/) { return {}; }

Status ApplyStep(const PrefixPieces& step, Pieces* pieces) {
  const auto prefix = [&](std::string_view text, bool is_first) -> std::string_view {
    if (text.starts_with(step.prefix) || (step.only_first && !is_first)) return {};
    return step.prefix;
  };
  RewritePieces(
      prefix, [](std::string_view text, std::string* result) { *result += text; }, pieces);
  return {};
}

Status ApplyStep(const ReplaceSpaces& step, Pieces* pieces) {
  const auto replace = [&](std::string_view text, std::string* result) {
    for (const char c : text) {
      if (c == ' ') {
        *result += step.replacement;
      } else {
        *result += c;
      }
    }
  };
  RewritePieces(NoPrefix, replace, pieces);
  return {};
}

Status ApplyStep(SpellPieces /*step*/, Pieces* pieces) {
  RewritePieces(NoPrefix, AppendByteLevel, pieces);
  return {};
}

}  // namespace

Status PreTokenizer::Apply(Pieces* pieces) const {
  const size_t original_bytes = pieces->text.size();
  for (const PreTokenizerStep& step : steps_) {
    Status status = std::visit([&](const auto& s) { return ApplyStep(s, pieces); }, step);
    if (!status) return status;
    status = CheckGrowth(original_bytes, pieces->text.size());
    if (!status) return status;
  }
  return {};
}

}  // namespace convene::text
