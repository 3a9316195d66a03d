#include "text/regex.h"

#include <oniguruma.h>

#include <mutex>

#include "base/quote.h"
#include "base/utf8.h"
#include "text/code_points.h"
#include "text/regex_pattern.h"

namespace convene::text {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;

const OnigUChar* Bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string Reason(int code, OnigErrorInfo* info) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = onig_error_code_to_str(buffer, code, info);
  return {reinterpret_cast<const char*>(buffer), static_cast<size_t>(length)};
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, /*free_self=*/1); }
};
struct FreeMatchParam {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};

// Bounds on time and memory in proportion to the text, with room for what patterns of tokenizers
// do: a run of spaces may be walked back once for each alternative that fails on it.
std::unique_ptr<OnigMatchParam, FreeMatchParam> LimitsFor(size_t size_bytes) {
  std::unique_ptr<OnigMatchParam, FreeMatchParam> param(onig_new_match_param());
  CHECK(param != nullptr, "out of memory");
  onig_initialize_match_param(param.get());
  const unsigned long max_retries = 10'000 + 64 * size_bytes;
  onig_set_retry_limit_in_match_of_match_param(param.get(), max_retries);
  onig_set_retry_limit_in_search_of_match_param(param.get(), max_retries);
  onig_set_match_stack_limit_size_of_match_param(
      param.get(),
      static_cast<unsigned int>(std::min<size_t>(100'000 + 16 * size_bytes, 1u << 31)));
  return param;
}

// `text` with stand-ins for code points that this Oniguruma knows differently, byte for byte as
// long; `others` replaces the usual ones. Empty when there is nothing to replace.
std::string WithStandIns(std::string_view text,
                         const std::unordered_map<char32_t, char32_t>& others) {
  std::string replaced;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t begin = at;
    const char32_t code_point = ReadCodePoint(text, &at);
    char32_t stand_in = RegexStandIn(code_point);
    if (stand_in == code_point) continue;
    if (const auto other = others.find(code_point); other != others.end()) stand_in = other->second;
    if (replaced.empty()) replaced = text;
    std::string character;
    AppendUtf8(stand_in, &character);
    replaced.replace(begin, at - begin, character);
  }
  return replaced;
}

}  // namespace

void Regex::Free::operator()(void* regex) const { onig_free(static_cast<OnigRegex>(regex)); }

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{fmt::format("a regular expression of {} bytes; at most {} are read",
                             pattern.size(), kMaxPatternBytes)};
  }
  if (ValidUtf8Prefix(pattern) < pattern.size()) {
    return Error{fmt::format("the regular expression {} is not valid UTF-8", Quote(pattern))};
  }
  const std::string rewritten = WithPackageClasses(pattern);
  Regex regex(pattern);
  regex.stand_ins_ = StandInsBeside(pattern);
  // Compiling reads and writes tables that all regular expressions share.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  OnigEncoding encoding = ONIG_ENCODING_UTF8;
  onig_initialize(&encoding, 1);

  OnigRegex compiled = nullptr;
  OnigErrorInfo info;
  const int code = onig_new(&compiled, Bytes(rewritten), Bytes(rewritten) + rewritten.size(),
                            ONIG_OPTION_NONE, encoding, ONIG_SYNTAX_ONIGURUMA, &info);
  if (code != ONIG_NORMAL) {
    return Error{
        fmt::format("the regular expression {} is wrong: {}", Quote(pattern), Reason(code, &info))};
  }
  regex.regex_.reset(compiled);
  return regex;
}

Status Regex::FindAll(std::string_view text, std::vector<Match>* matches) const {
  if (text.empty()) return {};
  const std::string replaced = WithStandIns(text, stand_ins_);
  const std::string_view searched = replaced.empty() ? text : replaced;
  const OnigUChar* begin = Bytes(searched);
  const OnigUChar* end = begin + searched.size();
  const auto limits = LimitsFor(searched.size());
  const std::unique_ptr<OnigRegion, FreeRegion> region(onig_region_new());
  CHECK(region != nullptr, "out of memory");

  size_t from = 0;
  bool is_after_match = false;
  while (from <= searched.size()) {
    const int code =
        onig_search_with_param(static_cast<OnigRegex>(regex_.get()), begin, end, begin + from, end,
                               region.get(), ONIG_OPTION_NONE, limits.get());
    if (code == ONIG_MISMATCH) break;
    if (code < 0) {
      return Error{fmt::format("the regular expression {} gives up on a text of {} bytes: {}",
                               Quote(pattern_), text.size(), Reason(code, nullptr))};
    }
    const Match match{.begin = static_cast<size_t>(region->beg[0]),
                      .end = static_cast<size_t>(region->end[0])};
    if (match.begin == match.end && is_after_match && match.end == matches->back().end) {
      // An empty match directly behind the last one does not count: look from the next character.
      if (from == searched.size()) break;
      ReadCodePoint(searched, &from);
      continue;
    }
    matches->push_back(match);
    is_after_match = true;
    from = match.end;
  }
  return {};
}

Result<Pattern> Pattern::Literal(std::string_view text) {
  if (text.empty()) return Expression(text);
  Pattern pattern;
  pattern.literal_ = text;
  return pattern;
}

Result<Pattern> Pattern::Expression(std::string_view expression) {
  auto regex = Regex::Compile(expression);
  if (!regex) return regex.error();
  Pattern pattern;
  pattern.regex_ = std::make_shared<const Regex>(*std::move(regex));
  return pattern;
}

Status Pattern::FindAll(std::string_view text, std::vector<Match>* matches) const {
  if (regex_ != nullptr) return regex_->FindAll(text, matches);
  for (size_t at = text.find(literal_); at != text.npos; at = text.find(literal_, at)) {
    matches->push_back({.begin = at, .end = at + literal_.size()});
    at += literal_.size();
  }
  return {};
}

}  // namespace convene::text
