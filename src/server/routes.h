// What a server answers to: its paths, and the type that bodies must have.
#pragma once

#include <string>
#include <string_view>

namespace convene::server {

enum class Route {
  kChat,
  kCompletions,
  kResponses,
  kEmbeddings,
  kTokenize,
  kDetokenize,
  kModels,
  kModel,
  kHealth,
  kVersion,
  kMetrics,
  kPlan,
  kLastStep,
  kLastStepSvg,
  kPage,
};

// Whether it is answered without a key: what tells nothing of the model or of requests.
constexpr bool NeedsNoKey(Route route) { return route == Route::kHealth || route == Route::kPage; }

struct RouteEntry {
  std::string_view path;  // ends with '/': with any name behind it
  bool is_post;
  Route route;
};

// Null: there is nothing at that path.
const RouteEntry* FindRoute(std::string_view path);

// What stands behind the path of `entry`, %2F and the like decoded.
std::string NameIn(std::string_view path, const RouteEntry& entry);

// Whether a Content-Type is JSON's, whatever its parameters.
bool IsJson(std::string_view content_type);

}  // namespace convene::server
