#include "base/closest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace convene {
namespace {

constexpr size_t kMostNameLength = 64;  // nothing longer is a name with typing errors
constexpr size_t kLettersPerError = 3;  // one wrong letter in so many
constexpr size_t kShortestPart = 3;     // of a name, to stand for it

// How many letters were left out, added, replaced or exchanged with their neighbour to make `b` of
// `a` (optimal string alignment).
size_t NumTypingErrors(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> errors(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        errors[i][j] = i + j;
        continue;
      }
      const size_t replaced = errors[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      errors[i][j] = std::min({errors[i - 1][j] + 1, errors[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        errors[i][j] = std::min(errors[i][j], errors[i - 2][j - 2] + 1);
      }
    }
  }
  return errors[a.size()][b.size()];
}

}  // namespace

std::string ClosestName(std::string_view given, std::span<const std::string> names) {
  if (given.empty() || given.size() > kMostNameLength) return "";
  std::string closest;
  size_t fewest = std::max<size_t>(1, given.size() / kLettersPerError) + 1;
  for (const std::string& name : names) {
    const size_t num_errors = NumTypingErrors(given, name);
    // As many errors as letters would make any short name of any other.
    if (num_errors >= fewest || num_errors >= name.size()) continue;
    fewest = num_errors;
    closest = name;
  }
  if (!closest.empty() || given.size() < kShortestPart) return closest;
  size_t num_containing = 0;
  for (const std::string& name : names) {
    if (name.find(given) == std::string::npos) continue;
    ++num_containing;
    closest = name;
  }
  return num_containing == 1 ? closest : "";
}

std::string DidYouMean(std::string_view given, std::span<const std::string> names) {
  const std::string closest = ClosestName(given, names);
  return closest.empty() ? "" : fmt::format("; did you mean {}?", closest);
}

}  // namespace convene
