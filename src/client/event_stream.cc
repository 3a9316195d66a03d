#include "client/event_stream.h"

#include <utility>

namespace convene::client {

std::vector<std::string> EventStream::Push(std::string_view bytes) {
  std::vector<std::string> events;
  while (!bytes.empty()) {
    if (std::exchange(ended_by_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (end == std::string_view::npos) break;
    ended_by_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    TakeLine(events);
    line_.clear();
  }
  return events;
}

void EventStream::TakeLine(std::vector<std::string>& events) {
  if (line_.empty()) {
    if (std::exchange(has_data_, false)) events.push_back(std::exchange(data_, {}));
    return;
  }
  std::string_view rest = line_;
  constexpr std::string_view kData = "data";
  if (!rest.starts_with(kData)) return;  // a comment or another field
  rest.remove_prefix(kData.size());
  if (!rest.empty()) {
    if (rest.front() != ':') return;  // a longer name
    rest.remove_prefix(1);
    if (rest.starts_with(' ')) rest.remove_prefix(1);
  }
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += rest;
}

}  // namespace convene::client
