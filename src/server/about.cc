#include "server/about.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/version.h"
#include "server/page.h"
#include "server/preparer.h"
#include "server/prometheus.h"

namespace convene::server {
namespace {

using nlohmann::ordered_json;
using openai::ApiError;

Response JsonResponse(const ordered_json& json) { return {.body = json.dump() + "\n"}; }

ApiError NotThere(const char* message) {
  return {.status = 404, .message = message, .type = "invalid_request_error"};
}

ordered_json ModelJson(const ServedModel& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "convene"},
          {"max_model_len", model.context}};
}

ordered_json ModelsJson(const ServedModel* model) {
  ordered_json models = {{"object", "list"}, {"data", ordered_json::array()}};
  if (model != nullptr) models["data"].push_back(ModelJson(*model));
  return models;
}

Response MetricsResponse(const ServerState& server) {
  std::string text = server.metrics.Text(server.model_name, server.num_queued);
  server.watcher.AppendTo(text, ModelLabel(server.model_name));
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(text)};
}

std::variant<Response, ApiError> AnswerAboutSteps(Route route, const ServerState& server) {
  if (!server.model->watches_steps) return NotThere("steps are not watched (--no-watch)");
  if (route == Route::kLastStep) return Response{.body = server.watcher.LastStepJson()};
  const std::string svg = server.watcher.LastStepSvg();
  if (svg.empty()) return NotThere("no step has run yet");
  return Response{.content_type = "image/svg+xml", .body = svg};
}

}  // namespace

ApiError NotLoaded() {
  return {.status = 503,
          .message = "the model is being loaded; try again",
          .type = "service_unavailable_error",
          .retry_after_s = kRetryAfterS};
}

ApiError ShuttingDown() {
  return {.status = 503, .message = "the server shuts down", .type = "service_unavailable_error"};
}

ApiError RankLost() {
  return {.status = 503,
          .message = "a rank that computed the answer has ended, and the server ends with it",
          .type = "service_unavailable_error"};
}

ApiError QueueFull(int max_queue) {
  return {.status = 429,
          .message =
              fmt::format("as many requests wait as may ({}, --max-queue); try again", max_queue),
          .type = "rate_limit_error",
          .code = "queue_full",
          .retry_after_s = kRetryAfterS};
}

ApiError BodiesFull(size_t max_bytes) {
  return {.status = 429,
          .message = fmt::format("the requests that wait to be read would have more than {} bytes "
                                 "together ({} times --max-body); try again, or send smaller ones",
                                 max_bytes, Preparer::kLargestBodies),
          .type = "rate_limit_error",
          .code = "queue_full",
          .retry_after_s = kRetryAfterS};
}

std::variant<Response, ApiError> AnswerAbout(Route route, const ServerState& server) {
  switch (route) {
    case Route::kHealth:
      if (server.is_draining) return ShuttingDown();
      if (server.model == nullptr) return NotLoaded();
      return JsonResponse({{"status", "ok"}});
    case Route::kVersion:
      return JsonResponse({{"version", kVersion}});
    case Route::kMetrics:
      return MetricsResponse(server);
    case Route::kModels:
      return JsonResponse(ModelsJson(server.model));
    case Route::kPage:
      return PageResponse();
    default:
      break;
  }
  if (server.model == nullptr) return NotLoaded();
  if (route == Route::kModel) {
    if (auto error = CheckModelName(*server.model, server.asked_model)) return *std::move(error);
    return JsonResponse(ModelJson(*server.model));
  }
  if (route == Route::kPlan) return Response{.body = server.model->plan_json};
  return AnswerAboutSteps(route, server);
}

}  // namespace convene::server
