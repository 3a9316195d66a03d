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
  kHealth,
  kVersion,
  kMetrics,
};

struct RouteEntry {
  std::string_view path;
  bool is_post;
  Route route;
};

// Null: there is nothing at that path.
const RouteEntry* FindRoute(const std::string& path);

// Whether a Content-Type is JSON's, whatever its parameters.
bool IsJson(std::string_view content_type);

}  // namespace convene::server
