// What JSON Schema says of the types of a value, as far as it is plain.
#pragma once

#include <nlohmann/json.hpp>

#include "openai/call_parameters.h"

namespace convene::openai {

// By type, enum, const, anyOf, oneOf, and $ref to the definitions of `top`; all where none of these
// is there, or what they say is not understood.
JsonTypes TypesOf(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& top);

}  // namespace convene::openai
