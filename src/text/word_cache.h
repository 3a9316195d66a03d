// What encoding remembers of words it has met, within one call: texts repeat their words.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace convene::text {

// Words up to this long are remembered, and so many of them.
inline constexpr size_t kMaxCachedWordBytes = 256;
inline constexpr size_t kMaxCachedWords = 1 << 16;

struct WordHash {
  using is_transparent = void;  // looked up by string_view; NOLINT: the library's name
  size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};

// The ids of words; for one model and one thread at a time.
using WordCache = std::unordered_map<std::string, std::vector<int32_t>, WordHash, std::equal_to<>>;

}  // namespace convene::text
