// An error as a client of OpenAI's API gets it: an HTTP status and a body. What went wrong is the
// caller's to say.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "openai/body_fields.h"

namespace convene::openai {

struct ApiError {
  int status = 500;
  std::string message;
  std::string type;                       // "invalid_request_error", ...
  std::optional<std::string> param = {};  // the field of the body that is at fault
  std::optional<std::string> code = {};   // a word for programs
  int retry_after_s = 0;                  // when to try again; 0: not said
};

// The status that goes with the error's kind: 400 for what the request says, 404, 503 for what is
// lacking now, 500 for what is damaged or has no cause outside.
ApiError ToApiError(const Error& error);
ApiError ToApiError(const FieldError& error);

// Errors of the server itself.
ApiError InvalidRequest(std::string message);

// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json ErrorBody(const ApiError& error);

}  // namespace convene::openai
