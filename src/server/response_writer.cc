#include "server/response_writer.h"

#include <fmt/format.h>

#include <utility>

#include "server/exchange.h"
#include "server/routes.h"

namespace convene::server {

Response ResponseWriter::Refuse(const RequestHead& head, const openai::ApiError& error) const {
  Response response = ErrorResponse(error);
  for (auto& header : access_.CorsHeaders(head)) response.headers.push_back(std::move(header));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  metrics_.Responded(error.status);
  // Who asks whether the server is there does so again and again.
  const RouteEntry* entry = FindRoute(head.path);
  const bool is_probe = entry != nullptr && entry->route == Route::kHealth;
  log_.Write(is_probe              ? LogLevel::kDebug
             : error.status >= 500 ? LogLevel::kWarning
                                   : LogLevel::kInfo,
             {{"event", "refused"},
              {"client", head.client},
              {"path", head.path},
              {"status", fmt::to_string(error.status)},
              {"error", error.message}});
  return response;
}

void ResponseWriter::Respond(const RequestHead& head, Responder& responder,
                             Response response) const {
  for (auto& header : access_.CorsHeaders(head)) response.headers.push_back(std::move(header));
  metrics_.Responded(response.status);
  log_.Write(LogLevel::kDebug, {{"event", "response"},
                                {"client", head.client},
                                {"path", head.path},
                                {"status", fmt::to_string(response.status)}});
  responder.Respond(response);
}

}  // namespace convene::server
