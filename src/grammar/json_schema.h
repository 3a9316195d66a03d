// JSON as a grammar: any object, or what a schema allows. Format:
// https://json-schema.org/draft/2020-12, of which the part is read that tools and structured
// outputs need.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "grammar/grammar.h"

namespace convene::grammar {

// JSON without schema is nested at most this deep, so that it ends.
inline constexpr int kMaxFreeDepth = 16;

// A rule of `grammar` for JSON text that holds for `schema`: type (also a list of types), object
// with properties, required and additionalProperties (false, or a schema where there are no
// properties), array with items, minItems and maxItems, string, number, integer, boolean, null,
// enum, const and anyOf (each with some tens of thousands of values at most), and $ref to what
// "$defs" has at the top, without recursion. What only describes (title, description, default, ...)
// is passed over.
//
// Properties come in the schema's order, no others besides. Integers have at most 15 digits,
// numbers besides at most 15 behind the point and an exponent of 2. Between tokens there may be a
// space, or a line break with at most 20 spaces. So every text is finite but for its strings.
//
// Errors: a keyword that is not supported, by its name and place; a schema that nothing satisfies,
// or that is too large.
Result<Grammar::Element> AddJsonSchema(const nlohmann::ordered_json& schema, Grammar* grammar);

// What "$ref" refers to: an entry of the "$defs" or "definitions" of `top`, by a pointer (RFC
// 6901). Null: it refers to something else, or is none.
const nlohmann::ordered_json* FindDefinition(const nlohmann::ordered_json& top,
                                             const nlohmann::ordered_json& reference);

// A rule for any JSON object.
Grammar::Element AddJsonObject(Grammar* grammar);

}  // namespace convene::grammar
