#include "text/regex_pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/utf8.h"
#include "text/code_points.h"
#include "text/regex.h"

namespace convene::text {
namespace {

constexpr char32_t kFirstBeyondAscii = 0x80;
constexpr char32_t kEndOfScripts = 0x33480;  // what lies behind has hardly an assigned code point

// A number of at most `max_digits` hexadecimal digits from `at` on; moves `at` behind them.
std::optional<char32_t> ReadHexadecimal(std::string_view pattern, size_t max_digits, size_t* at) {
  const std::string_view digits = pattern.substr(*at, max_digits);
  uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc()) return std::nullopt;
  *at += static_cast<size_t>(end - digits.data());
  return value;
}

// One code point that the pattern writes out, or nothing for escapes that are none, as \p{L}.
std::optional<char32_t> ReadWritten(std::string_view pattern, size_t* at) {
  const char32_t first = ReadCodePoint(pattern, at);
  if (first != '\\' || *at == pattern.size()) return first;
  const char32_t escaped = ReadCodePoint(pattern, at);
  if (escaped == 'u') return ReadHexadecimal(pattern, 4, at);
  if (escaped == 'x' && !pattern.substr(*at).starts_with('{')) {
    return ReadHexadecimal(pattern, 2, at);
  }
  if (escaped == 'x') {
    const std::optional<char32_t> value = ReadHexadecimal(pattern, 8, &++*at);
    if (pattern.substr(*at).starts_with('}')) ++*at;
    return value;
  }
  const bool is_letter = (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z');
  return is_letter ? std::nullopt : std::optional(escaped);
}

size_t Utf8Bytes(char32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

// Tells which of many ranges a code point lies in, as a number that is equal for equal sets.
class Memberships {
 public:
  explicit Memberships(const std::vector<CodePointRange>& ranges) {
    std::map<char32_t, uint64_t> changes;  // what a code point has and the one before it has not
    uint64_t hash = 0;
    for (const CodePointRange& range : ranges) {
      hash = (hash + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
      hash ^= hash >> 31;
      changes[range.first] ^= hash;
      changes[range.last + 1] ^= hash;
    }
    uint64_t set = 0;
    for (const auto& [first, change] : changes) sets_.emplace_back(first, set ^= change);
  }

  uint64_t Of(char32_t c) const {
    const auto above =
        std::upper_bound(sets_.begin(), sets_.end(), c,
                         [](char32_t d, const auto& entry) { return d < entry.first; });
    return above == sets_.begin() ? 0 : (above - 1)->second;
  }

 private:
  std::vector<std::pair<char32_t, uint64_t>> sets_;  // from a code point on, sorted
};

utf8proc_category_t CategoryOf(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Whether regular expressions tell two code points apart that lie in the same explicit ranges.
bool LookAlike(char32_t a, char32_t b) {
  if (CategoryOf(a) != CategoryOf(b)) return false;
  static const std::vector<Regex> properties = [] {
    std::vector<Regex> regexes;
    for (const char* name :
         {"Han", "Hiragana", "Katakana", "Alphabetic", "Uppercase", "Lowercase"}) {
      regexes.push_back(*Regex::Compile(fmt::format("\\p{{{}}}", name)));
    }
    return regexes;
  }();
  const auto has = [](const Regex& property, char32_t c) {
    std::string text;
    AppendUtf8(c, &text);
    std::vector<Match> matches;
    return property.FindAll(text, &matches) && !matches.empty();
  };
  return std::all_of(properties.begin(), properties.end(),
                     [&](const Regex& property) { return has(property, a) == has(property, b); });
}

}  // namespace

std::string WithPackageClasses(std::string_view pattern) {
  std::string rewritten;
  int depth = 0;          // of nested classes
  bool is_first = false;  // in its class, where a bracket that closes is a character
  for (size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    size_t size = rest[0] == '\\' ? std::min<size_t>(2, rest.size()) : 1;
    std::string_view replacement = rest.substr(0, size);
    const bool was_first = std::exchange(is_first, false);
    if (depth > 0 && rest.starts_with("[:punct:]")) {
      size = 9;
      replacement = "\\p{P}\\p{S}";
    } else if (depth > 0 && rest.starts_with("[:^punct:]")) {
      size = 10;
      replacement = "[^\\p{P}\\p{S}]";
    } else if (depth > 0 && rest.starts_with("[:") && rest.find(":]") < rest.find(']')) {
      size = rest.find(":]") + 2;  // another class by name
      replacement = rest.substr(0, size);
    } else if (rest[0] == '[') {
      ++depth;
      is_first = true;
      if (rest.substr(1).starts_with('^')) replacement = rest.substr(0, size = 2);
    } else if (rest[0] == ']' && depth > 0 && !was_first) {
      --depth;
    }
    rewritten += replacement;
    at += size;
  }
  return rewritten;
}

std::vector<CodePointRange> ExplicitRanges(std::string_view pattern) {
  std::vector<CodePointRange> ranges;
  for (size_t at = 0; at < pattern.size();) {
    const std::optional<char32_t> first = ReadWritten(pattern, &at);
    if (!first) continue;
    CodePointRange range = {*first, *first};
    // Outside of classes "a-b" is three characters; taken as a range it only costs stand-ins.
    size_t behind = at + 1;
    if (pattern.substr(at).starts_with('-') && behind < pattern.size() && pattern[behind] != ']') {
      const std::optional<char32_t> last = ReadWritten(pattern, &behind);
      if (last && *last >= *first) {
        range.last = *last;
        at = behind;
      }
    }
    if (range.last >= kFirstBeyondAscii) ranges.push_back(range);
  }
  return ranges;
}

std::unordered_map<char32_t, char32_t> StandInsBeside(std::string_view pattern) {
  std::unordered_map<char32_t, char32_t> others;
  const std::vector<CodePointRange> ranges = ExplicitRanges(pattern);
  if (ranges.empty()) return others;
  const Memberships memberships(ranges);

  // What is wanted: code points that look like the usual stand-in, but lie in these ranges.
  struct Wanted {
    std::vector<char32_t> code_points = {};
    std::optional<char32_t> found = {};
  };
  using Key = std::tuple<uint64_t, size_t, utf8proc_category_t>;  // ranges, bytes, category
  std::map<Key, std::map<char32_t, Wanted>> wanted;
  for (const StandIn& usual : StandIns()) {
    for (char32_t c = usual.first; c <= usual.last; ++c) {
      const uint64_t set = memberships.Of(c);
      if (set == memberships.Of(usual.proxy)) continue;
      wanted[{set, Utf8Bytes(c), CategoryOf(usual.proxy)}][usual.proxy].code_points.push_back(c);
    }
  }
  if (wanted.empty()) return others;
  for (char32_t c = kFirstBeyondAscii; c < kEndOfScripts; ++c) {
    const auto found = wanted.find({memberships.Of(c), Utf8Bytes(c), CategoryOf(c)});
    const bool is_surrogate = c >= 0xd800 && c <= 0xdfff;
    if (found == wanted.end() || is_surrogate || RegexStandIn(c) != c) continue;
    for (auto& [usual, entry] : found->second) {
      if (!entry.found && LookAlike(c, usual)) entry.found = c;
    }
  }
  for (const auto& [key, entries] : wanted) {
    for (const auto& [usual, entry] : entries) {
      if (!entry.found) continue;
      for (const char32_t c : entry.code_points) others.emplace(c, *entry.found);
    }
  }
  return others;
}

}  // namespace convene::text
