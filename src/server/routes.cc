#include "server/routes.h"

#include <algorithm>
#include <iterator>

#include "openai/body_fields.h"
#include "openai/responses_body.h"

namespace convene::server {
namespace {

constexpr RouteEntry kRoutes[] = {
    {openai::kChatUrl, true, Route::kChat},
    {openai::kCompletionsUrl, true, Route::kCompletions},
    {openai::kResponsesUrl, true, Route::kResponses},
    {"/v1/embeddings", true, Route::kEmbeddings},
    {"/tokenize", true, Route::kTokenize},
    {"/detokenize", true, Route::kDetokenize},
    {"/v1/models", false, Route::kModels},
    {"/health", false, Route::kHealth},
    {"/version", false, Route::kVersion},
    {"/metrics", false, Route::kMetrics},
    {"/v1/plan", false, Route::kPlan},
    {"/v1/steps/last", false, Route::kLastStep},
    {"/v1/steps/last.svg", false, Route::kLastStepSvg},
    {"/", false, Route::kPage},
};

}  // namespace

const RouteEntry* FindRoute(const std::string& path) {
  const auto* found = std::ranges::find(kRoutes, std::string_view(path), &RouteEntry::path);
  return found == std::end(kRoutes) ? nullptr : found;
}

bool IsJson(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::ranges::transform(type, type.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  });
  return type == kJson;
}

}  // namespace convene::server
