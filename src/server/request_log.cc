#include "server/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace convene::server {
namespace {

constexpr const char* kLevelNames[] = {"error", "warning", "info", "debug"};

bool IsPlain(std::string_view value) {
  return !value.empty() && std::ranges::all_of(value, [](unsigned char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
}

}  // namespace

std::string LogLine(LogLevel level, const LogFields& fields) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds = now.time_since_epoch().count() % 1000;
  std::string line = fmt::format("time={:%Y-%m-%dT%H:%M:%S}.{:03}Z level={}", fmt::gmtime(seconds),
                                 milliseconds, kLevelNames[static_cast<int>(level)]);
  for (const auto& [name, value] : fields) {
    // ASCII alone: what somebody else wrote must not reach a terminal as commands.
    line += fmt::format(" {}={}", name,
                        IsPlain(value)
                            ? value
                            : nlohmann::json(value).dump(-1, ' ', /*ensure_ascii=*/true,
                                                         nlohmann::json::error_handler_t::replace));
  }
  return line;
}

void RequestLog::Write(LogLevel level, const LogFields& fields) const {
  if (!Shows(level)) return;
  const std::string line = LogLine(level, fields) + "\n";
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  static_cast<void>(std::fflush(stderr));
}

}  // namespace convene::server
