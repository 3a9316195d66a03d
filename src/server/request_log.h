// The server's log: a line for each request and each event, on standard error, as key=value pairs
// that programs can read. No texts of prompts and answers, unless they are passed in.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace convene::server {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

using LogFields = std::vector<std::pair<std::string_view, std::string>>;

// "time=2026-11-24T13:05:50.123Z level=info event=request id=..." without a line break. Values that
// hold spaces, quotes or control characters are quoted as in JSON.
std::string LogLine(LogLevel level, const LogFields& fields);

class RequestLog {
 public:
  explicit RequestLog(LogLevel level) : level_(level) {}

  bool Shows(LogLevel level) const { return level <= level_; }

  // Threads may call it at the same time: a line is written whole.
  void Write(LogLevel level, const LogFields& fields) const;

 private:
  LogLevel level_;
};

}  // namespace convene::server
