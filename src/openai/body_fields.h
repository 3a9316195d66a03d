// Which fields the body of a request may have. What the supported ones mean is generation_body.h.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::openai {

inline constexpr std::string_view kChatUrl = "/v1/chat/completions";
inline constexpr std::string_view kCompletionsUrl = "/v1/completions";

// Where a body came from. A line of a batch has one answer, which is not streamed.
enum class BodyOrigin { kBatchLine, kServer };

// An error about one field; `field` is empty where it is about the body as a whole.
struct FieldError {
  Error error;
  std::string field;
};
using FieldStatus = std::optional<FieldError>;  // none: all is well

// What says something about a request and nothing about its answer (user, metadata, ...) may be
// there, if it has its type; of service_tier there is one. None: the field is something else.
std::optional<FieldStatus> CheckHint(std::string_view name, const nlohmann::ordered_json& value,
                                     std::string_view shown);

// Fields of `body`, an object, that would change the answer if they were honoured are refused by
// their names, unknown ones too; null counts as absent in those that are known. Pass: supported
// fields, hints, and those with the value that changes nothing (best_of of 1).
FieldStatus CheckFields(const nlohmann::ordered_json& body, bool is_chat, BodyOrigin origin);

// How messages name a field: in a batch's line it is within "body".
std::string NameOf(std::string_view field, BodyOrigin origin);

}  // namespace convene::openai
