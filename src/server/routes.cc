#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/quote.h"
#include "openai/body_fields.h"
#include "openai/responses_body.h"

namespace convene::server {
namespace {

using openai::ApiError;

constexpr RouteEntry kRoutes[] = {
    {openai::kChatUrl, true, Route::kChat},
    {openai::kCompletionsUrl, true, Route::kCompletions},
    {openai::kResponsesUrl, true, Route::kResponses},
    {"/v1/embeddings", true, Route::kEmbeddings},
    {"/tokenize", true, Route::kTokenize},
    {"/detokenize", true, Route::kDetokenize},
    {"/v1/models", false, Route::kModels},
    {"/v1/models/", false, Route::kModel},
    {"/health", false, Route::kHealth},
    {"/version", false, Route::kVersion},
    {"/metrics", false, Route::kMetrics},
    {"/v1/plan", false, Route::kPlan},
    {"/v1/steps/last", false, Route::kLastStep},
    {"/v1/steps/last.svg", false, Route::kLastStepSvg},
    {"/", false, Route::kPage},
};

// Whatever its parameters.
bool IsJson(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::ranges::transform(type, type.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  });
  return type == kJson;
}

}  // namespace

const RouteEntry* FindRoute(std::string_view path) {
  const auto* found = std::ranges::find_if(kRoutes, [&](const RouteEntry& entry) {
    const bool takes_name = entry.path.size() > 1 && entry.path.ends_with('/');
    if (!takes_name) return path == entry.path;
    return path.size() > entry.path.size() && path.starts_with(entry.path);
  });
  return found == std::end(kRoutes) ? nullptr : found;
}

std::string NameIn(std::string_view path, const RouteEntry& entry) {
  path.remove_prefix(entry.path.size());
  std::string name;
  for (size_t i = 0; i < path.size(); ++i) {
    unsigned char byte = 0;
    const bool is_escape =
        path[i] == '%' && path.size() - i > 2 &&
        std::from_chars(&path[i] + 1, &path[i] + 3, byte, 16).ptr == &path[i] + 3;
    name += is_escape ? static_cast<char>(byte) : path[i];
    if (is_escape) i += 2;
  }
  return name;
}

const char* MethodsOf(const RouteEntry& entry) {
  return entry.is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

std::optional<ApiError> RefusalOf(const RequestHead& head, const RouteEntry* entry, bool has_key) {
  if (entry == nullptr) {
    return ApiError{.status = 404,
                    .message = fmt::format("there is nothing at {}", Quote(head.path)),
                    .type = "invalid_request_error",
                    .code = "unknown_url"};
  }
  const bool is_get = head.method == "GET" || head.method == "HEAD";
  if (entry->is_post ? head.method != "POST" : !is_get) {
    return ApiError{
        .status = 405,
        .message = fmt::format("{} takes {}", head.path, entry->is_post ? "POST" : "GET"),
        .type = "invalid_request_error"};
  }
  if (!NeedsNoKey(entry->route) && !has_key) {
    return ApiError{.status = 401,
                    .message = "this server wants an API key: Authorization: Bearer KEY",
                    .type = "authentication_error",
                    .code = "invalid_api_key"};
  }
  // Pages of other origins can send other types without asking first.
  if (entry->is_post && !IsJson(head.content_type)) {
    return ApiError{.status = 415,
                    .message = "the body must be JSON: Content-Type: application/json",
                    .type = "invalid_request_error"};
  }
  return std::nullopt;
}

}  // namespace convene::server
