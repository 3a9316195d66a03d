#include "client/server_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/quote.h"

namespace convene::client {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::string_view kVersionPath = "/v1";
constexpr int kMaxPort = 65535;

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0 && port <= kMaxPort;
}

// A line break in a URL would end the request's line and begin a header.
bool IsVisible(char c) { return c > ' ' && c < '\x7f'; }

}  // namespace

std::string ServerUrl::authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port);
}

Result<ServerUrl> ParseServerUrl(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Error{fmt::format("{} {}; write it as http://127.0.0.1:8080", Quote(text), why)};
  };
  if (text.starts_with("https://")) {
    return wrong(
        "is a server with TLS, which this client does not speak: ask the server itself, "
        "without the proxy before it");
  }
  if (!text.starts_with(kScheme)) return wrong("does not begin with http://");
  if (!std::ranges::all_of(text, IsVisible)) return wrong("has characters that no URL has");
  std::string_view rest = text.substr(kScheme.size());
  ServerUrl url{.host = {}, .port = "80", .base = {}};
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view place = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  if (path.find_first_of("?#") != std::string_view::npos) return wrong("has more than a path");
  if (place.find('@') != std::string_view::npos) {
    return wrong("has a user's name; give a key by --api-key");
  }
  const size_t bracket = place.starts_with('[') ? place.find(']') : 0;
  if (bracket == std::string_view::npos) return wrong("has a bracket that is not closed");
  const size_t colon = place.find(':', bracket);
  if (colon != std::string_view::npos) {
    url.port = place.substr(colon + 1);
    if (!IsPort(url.port)) return wrong("has a port that is no number from 1 to 65535");
    place = place.substr(0, colon);
  }
  if (bracket > 0) {
    if (place.size() != bracket + 1) return wrong("has more than a port behind its bracket");
    place = place.substr(1, bracket - 1);
  }
  url.host = place;
  if (url.host.empty()) return wrong("names no host");
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with(kVersionPath)) path.remove_suffix(kVersionPath.size());
  url.base = path;
  return url;
}

}  // namespace convene::client
