#include "openai/api_error.h"

#include <utility>

namespace convene::openai {

using nlohmann::ordered_json;

ApiError ToApiError(const Error& error) {
  switch (error.kind) {
    case ErrorKind::kInvalidArgument:
      return InvalidRequest(error.message);
    case ErrorKind::kNotFound:
      return {.status = 404, .message = error.message, .type = "not_found_error"};
    case ErrorKind::kResourceExhausted:
    case ErrorKind::kUnavailable:
      return {.status = 503, .message = error.message, .type = "service_unavailable_error"};
    case ErrorKind::kDataLoss:
    case ErrorKind::kInternal:
      break;
  }
  return {.status = 500, .message = error.message, .type = "server_error"};
}

ApiError ToApiError(const FieldError& error) {
  ApiError api = ToApiError(error.error);
  if (!error.field.empty()) api.param = error.field;
  return api;
}

ApiError InvalidRequest(std::string message) {
  return {.status = 400, .message = std::move(message), .type = "invalid_request_error"};
}

ordered_json ErrorBody(const ApiError& error) {
  const auto text_or_null = [](const std::optional<std::string>& text) {
    return text ? ordered_json(*text) : ordered_json(nullptr);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.param)},
            {"code", text_or_null(error.code)}}}};
}

}  // namespace convene::openai
