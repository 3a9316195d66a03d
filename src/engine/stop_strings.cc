#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convene::engine {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) CHECK(!stop.empty(), "an empty stop string");
}

std::string StopStrings::Push(std::string_view piece) {
  if (stopped_) return {};
  pending_ += piece;
  size_t first_end = std::string::npos;
  size_t first_begin = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = pending_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < first_end || (end == first_end && begin < first_begin)) {
      first_end = end;
      first_begin = begin;
    }
  }
  stopped_ = first_end != std::string::npos;
  const size_t num_shown = stopped_ ? first_begin : pending_.size() - HeldBackBytes();
  std::string shown = pending_.substr(0, num_shown);
  pending_.erase(0, stopped_ ? pending_.size() : num_shown);
  return shown;
}

std::string StopStrings::Finish() { return std::exchange(pending_, {}); }

// Length of the longest end of pending_ with which a stop string begins.
size_t StopStrings::HeldBackBytes() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, pending_.size()); size > longest; --size) {
      if (pending_.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  return longest;
}

}  // namespace convene::engine
