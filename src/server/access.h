// Who may ask: API keys, and pages of other origins (CORS).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace convene::server {

class Access {
 public:
  // Without keys everybody may ask; the origin "*" stands for all.
  Access(std::vector<std::string> keys, std::vector<std::string> origins)
      : keys_(std::move(keys)), origins_(std::move(origins)) {}

  // Whose request it is, by "Authorization: Bearer KEY": a name of the key that does not tell it,
  // "" where there are no keys; nothing: it has none of them.
  std::optional<std::string> ClientOf(const RequestHead& head) const;

  // The headers by which a browser lets a page of the request's origin read the response.
  Headers CorsHeaders(const RequestHead& head) const;

  // Of the answer to a browser that asks first: it may send such requests (`methods`, "GET"), with
  // any header, since clients have some of their own that nobody here reads.
  Headers PreflightHeaders(const RequestHead& head, const char* methods) const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::string> origins_;
};

}  // namespace convene::server
