// Reads the fields of a request for a chat that are about tools.
#pragma once

#include <nlohmann/json.hpp>

#include "openai/field_reader.h"
#include "openai/generation_body.h"

namespace convene::openai {

// "tools": an array of {"type": "function", "function": {"name", "parameters", "strict", ...}};
// `tools` stays null where there are none.
void ReadTools(FieldReader& body, nlohmann::ordered_json* tools);

// "tool_choice": "auto", "none", "required" or {"type": "function", "function": {"name": "f"}}, and
// "parallel_tool_calls". Tools that may not be called are taken away.
void ReadToolChoice(FieldReader& body, BodyOrigin origin, GenerationBody* parsed);

}  // namespace convene::openai
