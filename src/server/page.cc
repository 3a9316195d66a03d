#include "server/page.h"

#include <fmt/format.h>

#include <random>
#include <string>
#include <string_view>

#include "server/page_text.h"

namespace convene::server {
namespace {

constexpr std::string_view kNoncePlace = "{{nonce}}";

std::string Nonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) nonce += fmt::format("{:08x}", random());
  return nonce;
}

}  // namespace

Response PageResponse() {
  const std::string nonce = Nonce();
  std::string page(kPageText);
  for (size_t at = page.find(kNoncePlace); at != std::string::npos;
       at = page.find(kNoncePlace, at)) {
    page.replace(at, kNoncePlace.size(), nonce);
  }
  return {.content_type = "text/html; charset=utf-8",
          .body = std::move(page),
          .headers = {{"Content-Security-Policy",
                       fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src "
                                   "'nonce-{0}'; img-src data:; connect-src 'self'; base-uri "
                                   "'none'; form-action 'none'; frame-ancestors 'none'",
                                   nonce)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}}};
}

}  // namespace convene::server
