// Which fields a batch request may have. What the supported ones mean is batch_line.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace convene::openai {

inline constexpr std::string_view kChatUrl = "/v1/chat/completions";
inline constexpr std::string_view kCompletionsUrl = "/v1/completions";

// Fields of `body`, an object, that would change the answer if they were honoured are refused by
// their names; null counts as absent. Pass: supported fields, those that say nothing about the
// answer (user, metadata, ...), and those with the value that changes nothing (n of 1).
Status CheckBatchFields(const nlohmann::ordered_json& body, bool is_chat);

}  // namespace convene::openai
