#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/code_points.h"
#include "text/graphemes.h"
#include "text/growth_limit.h"

namespace convene::text {
namespace {

// Writes the rewritten text and counts the bytes that still come from the original's beginning.
class Rewriter {
 public:
  explicit Rewriter(NormalizedText* text) : source_(text) {
    result_.text.reserve(text->text.size());
  }
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;
  ~Rewriter() { *source_ = std::move(result_); }

  std::string_view source() const { return source_->text; }
  std::string* text() { return &result_.text; }

  // What was appended to text() since the last call came from source()[source_at].
  void Mark(size_t source_at) {
    if (result_.num_origin_bytes == marked_ && source_at < source_->num_origin_bytes) {
      result_.num_origin_bytes = result_.text.size();
    }
    marked_ = result_.text.size();
  }

  void Append(std::string_view replacement, size_t source_at) {
    result_.text.append(replacement);
    Mark(source_at);
  }

  void Keep(size_t begin, size_t end) {
    const size_t num_origin_bytes = source_->num_origin_bytes;
    if (begin < num_origin_bytes) {
      const size_t origin_end = std::min(end, num_origin_bytes);
      Append(source().substr(begin, origin_end - begin), begin);
      begin = origin_end;
    }
    if (begin < end) Append(source().substr(begin, end - begin), begin);
  }

 private:
  NormalizedText* source_;
  NormalizedText result_;
  size_t marked_ = 0;  // bytes of the result whose origin is known
};

// Calls function(code_point, begin, end) for each character.
template <typename Function>
void ForEachCharacter(std::string_view text, const Function& function) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t code_point = ReadCodePoint(text, &at);
    function(code_point, begin, at);
  }
}

void AppendForm(std::string_view text, UnicodeForm form, std::string* result) {
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const bool is_compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (is_compatible) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &mapped, static_cast<utf8proc_option_t>(options));
  CHECK(length >= 0, "{}", utf8proc_errmsg(length));  // valid UTF-8 fails only for want of memory
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  result->append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

// Only runs of characters that the form may change go through the library, each with the character
// before it, which may take up a mark.
void ApplyNormalizerStep(UnicodeForm form, NormalizedText* text) {
  const char32_t inert_below = form == UnicodeForm::kNfc ? 0x300 : 0x80;
  const auto may_change = [&](char32_t c) {
    return c >= inert_below && !IsInRanges(c, NormalizationBarriers());
  };
  Rewriter rewriter(text);
  const std::string_view source = rewriter.source();
  size_t kept = 0;    // source bytes that are dealt with
  size_t before = 0;  // where the character before the current one begins
  for (size_t at = 0; at < source.size();) {
    size_t begin = at;
    if (!may_change(ReadCodePoint(source, &at))) {
      before = begin;
      continue;
    }
    if (begin > before) {
      size_t end = before;
      if (!IsInRanges(ReadCodePoint(source, &end), NormalizationBarriers())) begin = before;
    }
    size_t end = at;
    while (end < source.size()) {
      size_t next = end;
      if (!may_change(ReadCodePoint(source, &next))) break;
      end = next;
    }
    rewriter.Keep(kept, begin);
    // The first character carries the run's origin; how it is spelt out does not matter further on.
    std::string run;
    AppendForm(source.substr(begin, end - begin), form, &run);
    size_t first_end = 0;
    if (!run.empty()) ReadCodePoint(run, &first_end);
    rewriter.Append(std::string_view(run).substr(0, first_end), begin);
    rewriter.Append(std::string_view(run).substr(first_end), end);
    kept = before = at = end;
  }
  rewriter.Keep(kept, source.size());
}

void ApplyNormalizerStep(Lowercase /*step*/, NormalizedText* text) {
  Rewriter rewriter(text);
  ForEachCharacter(rewriter.source(), [&](char32_t code_point, size_t begin, size_t /*end*/) {
    AppendLowerCase(code_point, rewriter.text());
    rewriter.Mark(begin);
  });
}

void ApplyNormalizerStep(StripAccents /*step*/, NormalizedText* text) {
  Rewriter rewriter(text);
  ForEachCharacter(rewriter.source(), [&](char32_t code_point, size_t begin, size_t end) {
    if (!IsMark(code_point)) rewriter.Keep(begin, end);
  });
}

void ApplyNormalizerStep(const Strip& step, NormalizedText* text) {
  Rewriter rewriter(text);
  const std::string_view source = rewriter.source();
  const size_t begin = step.left ? SkipSpaceForward(source, 0) : 0;
  const size_t end = step.right ? SkipSpaceBackward(source, source.size()) : source.size();
  rewriter.Keep(begin, std::max(begin, end));
}

Status ApplyNormalizerStep(const Replace& step, size_t original_bytes, NormalizedText* text) {
  std::vector<Match> matches;
  if (Status status = step.pattern.FindAll(text->text, &matches); !status) return status;
  if (matches.empty()) return {};
  const size_t max_bytes = text->text.size() + matches.size() * step.content.size();
  if (Status status = CheckGrowth(original_bytes, max_bytes); !status) return status;
  Rewriter rewriter(text);
  size_t kept = 0;
  for (const Match& match : matches) {
    rewriter.Keep(kept, match.begin);
    // The reference aligns the new content with the last byte that it replaces.
    rewriter.Append(step.content, match.end == 0 ? 0 : match.end - 1);
    kept = match.end;
  }
  rewriter.Keep(kept, rewriter.source().size());
  return {};
}

void ApplyNormalizerStep(const Prepend& step, NormalizedText* text) {
  if (text->text.empty()) return;
  text->text.insert(0, step.prefix);
  if (text->num_origin_bytes > 0) text->num_origin_bytes += step.prefix.size();
}

void ApplyNormalizerStep(SpellBytes /*step*/, NormalizedText* text) {
  Rewriter rewriter(text);
  ForEachCharacter(rewriter.source(), [&](char32_t /*code_point*/, size_t begin, size_t end) {
    AppendByteLevel(rewriter.source().substr(begin, end - begin), rewriter.text());
    rewriter.Mark(begin);
  });
}

// Writes the replacements of characters. The reference aligns new characters with old ones one by
// one; what is more comes from the last of them. Characters removed from the very beginning are
// forgotten: the next ones take their places.
class CharacterReplacer {
 public:
  explicit CharacterReplacer(NormalizedText* text) : rewriter_(text) {}

  std::string_view source() const { return rewriter_.source(); }
  size_t num_bytes() { return rewriter_.text()->size(); }

  void Keep(std::string_view character) {
    rewriter_.Append(character, origin_);
    SkipOld(1);
  }

  void Replace(std::string_view old_part, std::string_view new_part) {
    size_t num_old = 0;
    ForEachCharacter(old_part, [&](char32_t, size_t, size_t) { ++num_old; });
    size_t num_skipped = 0;
    bool is_first = true;
    ForEachCharacter(new_part, [&](char32_t, size_t begin, size_t end) {
      if (!is_first && num_skipped + 1 < num_old) {
        SkipOld(1);
        ++num_skipped;
      }
      rewriter_.Append(new_part.substr(begin, end - begin), origin_);
      is_first = false;
    });
    if (num_bytes() > 0) SkipOld(num_old - num_skipped);
  }

 private:
  void SkipOld(size_t num_characters) {
    for (size_t i = 0; i < num_characters; ++i) ReadCodePoint(source(), &origin_);
  }

  Rewriter rewriter_;
  size_t origin_ = 0;  // source byte of the old character that the next new one is aligned with
};

// Looks up short grapheme clusters as a whole, where the replacement of a beginning replaces all of
// it, then their characters. So the reference does it.
Status ApplyNormalizerStep(const MapCharacters& step, size_t original_bytes, NormalizedText* text) {
  constexpr size_t kShortClusterBytes = 5;
  CharacterReplacer replacer(text);
  const std::string_view source = replacer.source();
  for (size_t begin = 0; begin < source.size();) {
    const size_t end = GraphemeEnd(source, begin);
    const auto cluster = source.substr(begin, end - begin);
    begin = end;
    const auto whole = cluster.size() <= kShortClusterBytes ? step.map.Find(cluster) : std::nullopt;
    if (whole) {
      replacer.Replace(cluster, *whole);
    } else {
      ForEachCharacter(cluster, [&](char32_t, size_t character_begin, size_t character_end) {
        const auto part = cluster.substr(character_begin, character_end - character_begin);
        if (const auto replacement = step.map.Find(part)) {
          replacer.Replace(part, *replacement);
        } else {
          replacer.Keep(part);
        }
      });
    }
    if (Status status = CheckGrowth(original_bytes, replacer.num_bytes()); !status) return status;
  }
  return {};
}

}  // namespace

Status Normalizer::Apply(NormalizedText* text) const {
  const size_t original_bytes = text->text.size();
  for (const NormalizerStep& step : steps_) {
    Status status = std::visit(
        [&](const auto& concrete) -> Status {
          using Step = std::remove_cvref_t<decltype(concrete)>;
          if constexpr (std::is_same_v<Step, Replace> || std::is_same_v<Step, MapCharacters>) {
            return ApplyNormalizerStep(concrete, original_bytes, text);
          } else {
            ApplyNormalizerStep(concrete, text);
            return CheckGrowth(original_bytes, text->text.size());
          }
        },
        step);
    if (!status) return status;
  }
  return {};
}

}  // namespace convene::text
