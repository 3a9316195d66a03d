#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>

namespace convene::server {
namespace {

// In a time that depends on the lengths alone.
bool AreEqual(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

std::optional<std::string> Access::ClientOf(const RequestHead& head) const {
  if (keys_.empty()) return "";
  constexpr std::string_view kScheme = "bearer ";
  std::string_view value = head.authorization;
  const bool is_bearer =
      value.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), value.begin(),
                 [](char wanted, char c) { return wanted == (c >= 'A' && c <= 'Z' ? c + 32 : c); });
  if (!is_bearer) return std::nullopt;
  value.remove_prefix(kScheme.size());
  std::optional<std::string> client;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (AreEqual(keys_[i], value)) client = fmt::format("key {}", i + 1);
  }
  return client;
}

Headers Access::CorsHeaders(const RequestHead& head) const {
  if (origins_.empty() || head.origin.empty()) return {};
  const bool all = std::ranges::find(origins_, "*") != origins_.end();
  if (!all && std::ranges::find(origins_, head.origin) == origins_.end()) return {};
  return {{"Access-Control-Allow-Origin", all ? "*" : head.origin},
          {"Access-Control-Expose-Headers", "Retry-After"},
          {"Vary", "Origin"}};
}

Headers Access::PreflightHeaders(const RequestHead& head, const char* methods) const {
  Headers headers = CorsHeaders(head);
  if (headers.empty()) return headers;
  headers.emplace_back("Access-Control-Allow-Methods", methods);
  // "*" is all but this one (Fetch standard, section 4.8, "CORS-preflight fetch").
  headers.emplace_back("Access-Control-Allow-Headers", "Authorization, *");
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace convene::server
