// Any bytes as the stop strings of a request and an answer that comes in pieces: what is shown ends
// before the stop string that ends first, however the answer is cut.
//
// The first byte of an input says how long the pieces are; up to each zero byte follows a stop
// string, and behind the last one the answer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/stop_strings.h"

namespace {

using convene::engine::StopStrings;

// What is left of `answer` where it is looked at as a whole: up to the first end of a stop string,
// the longest of those that end there taken away.
std::string_view Expected(std::string_view answer, const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= answer.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (answer.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return answer.substr(0, end - longest);
  }
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece_bytes = 1 + data[0] % 8;
  std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> stops;
  constexpr size_t kMostStops = 16;  // as a request may have
  for (size_t end; (end = input.find('\0')) != input.npos && stops.size() < kMostStops;) {
    if (end > 0) stops.emplace_back(input.substr(0, end));
    input.remove_prefix(end + 1);
  }
  constexpr size_t kMostBytes = 500;
  const std::string_view answer = input.substr(0, kMostBytes);
  StopStrings stream(stops);
  std::string shown;
  for (size_t at = 0; at < answer.size(); at += piece_bytes) {
    shown += stream.Push(answer.substr(at, piece_bytes));
    CHECK(Expected(answer, stops).starts_with(shown), "shown too early: {}", shown);
  }
  shown += stream.Finish();
  const std::string_view expected = Expected(answer, stops);
  CHECK(shown == expected, "{} instead of {}", shown, expected);
  CHECK(stream.stopped() || expected == answer);
  return 0;
}
