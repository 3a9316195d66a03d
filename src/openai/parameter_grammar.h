// Calls of tools whose parameters are written as text between tags, as rules: what a model may
// write so that it is read back as arguments that keep to a schema.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "grammar/grammar.h"
#include "openai/answer_syntax.h"

namespace convene::openai {

// All parameters of a call, each with its tags: those of the schema, in its order, or any where
// `schema` is null. A string is written as it is, all else as JSON. Errors: those of
// grammar::AddJsonSchema; an object without a fixed set of properties that is not free; a parameter
// that may be a string or an array or object, since a text cannot be told from these.
Result<grammar::Grammar::Sequence> AddParameters(const AnswerSyntax& syntax,
                                                 const nlohmann::ordered_json& schema,
                                                 grammar::Grammar* grammar);

}  // namespace convene::openai
