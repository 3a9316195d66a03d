// Server-sent events as they come in pieces over a network (HTML Living Standard, section 9.2). It
// gives the data of each; names, ids and times to reconnect are passed over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convene::client {

class EventStream {
 public:
  // The data of the events that `bytes` complete, in their order. `bytes` may end anywhere.
  std::vector<std::string> Push(std::string_view bytes);

  // Of what has not become an event yet.
  size_t pending_bytes() const { return line_.size() + data_.size(); }

 private:
  void TakeLine(std::vector<std::string>& events);

  std::string line_;
  bool ended_by_return_ = false;  // the line before, so that a line feed belongs to it
  std::string data_;
  bool has_data_ = false;
};

}  // namespace convene::client
