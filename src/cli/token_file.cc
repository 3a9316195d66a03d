#include "cli/token_file.h"

#include <fmt/format.h>

#include <charconv>

#include "base/quote.h"
#include "cli/npy.h"
#include "cli/output.h"

namespace convene::cli {

Result<std::vector<int32_t>> ParseTokenText(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  std::vector<int32_t> tokens;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    if (kSeparators.find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    int32_t token = 0;
    const auto [stop, error] = std::from_chars(at, end, token);
    const bool is_whole = stop == end || kSeparators.find(*stop) != std::string_view::npos;
    if (error != std::errc() || !is_whole || token < 0) {
      const std::string_view rest(at, static_cast<size_t>(end - at));
      return Error{fmt::format("{} is not a token id (number {} of the list)",
                               Quote(rest.substr(0, rest.find_first_of(kSeparators))),
                               tokens.size() + 1)};
    }
    tokens.push_back(token);
    at = stop;
  }
  return tokens;
}

Result<std::vector<int32_t>> ReadTokenFile(const std::string& path) {
  const Result<std::string> content = ReadText(path);
  if (!content) return content.error();
  Result<std::vector<int32_t>> tokens =
      IsNpy(*content) ? ParseNpyTokens(*content) : ParseTokenText(*content);
  if (!tokens) return tokens.error().At(path);
  return tokens;
}

}  // namespace convene::cli
