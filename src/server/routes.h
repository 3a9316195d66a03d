// What a server answers to: its paths, their methods, and the type that bodies must have.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "openai/api_error.h"
#include "server/http.h"

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

// As the header Allow has it.
const char* MethodsOf(const RouteEntry& entry);

// Why a request will not be read, as far as its head tells. `entry`: of its path; `has_key`: one of
// the server's, where it has some.
std::optional<openai::ApiError> RefusalOf(const RequestHead& head, const RouteEntry* entry,
                                          bool has_key);

}  // namespace convene::server
