// The body of a request to /v1/responses, as far as nothing needs to be stored: it is read as the
// chat that it stands for. Format: https://platform.openai.com/docs/api-reference/responses/create
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <variant>

#include "openai/body_fields.h"
#include "openai/generation_body.h"

namespace convene::openai {

inline constexpr std::string_view kResponsesUrl = "/v1/responses";

// Input: a text, or items: messages with texts, function_call, function_call_output, reasoning.
// Errors name the field of this body that is unknown, not supported, of the wrong type or out of
// range; what needs a store (previous_response_id, store, conversation, background) is refused.
std::variant<GenerationBody, FieldError> ParseResponsesBody(
    const nlohmann::ordered_json& body, const engine::SamplingOptions& defaults);

// An error about a field of the chat that such a body is read as, as one about the field that it
// comes from. `message_items`: GenerationBody::message_items.
FieldError InResponses(FieldError error, std::span<const MessageItems> message_items);

}  // namespace convene::openai
