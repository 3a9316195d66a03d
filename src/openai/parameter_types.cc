#include "openai/parameter_types.h"

#include <string_view>
#include <utility>

#include "grammar/json_schema.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxDepth = 16;  // of schemas that refer to each other, perhaps in a circle

// Of a name of JSON Schema; all for another one.
JsonTypes NamedType(const ordered_json& name) {
  const JsonTypes number = Only(JsonType::kNumber);
  const std::pair<std::string_view, JsonTypes> names[] = {{"null", Only(JsonType::kNull)},
                                                          {"boolean", Only(JsonType::kBoolean)},
                                                          {"number", number},
                                                          {"integer", Only(JsonType::kInteger)},
                                                          {"string", Only(JsonType::kString)},
                                                          {"array", Only(JsonType::kArray)},
                                                          {"object", Only(JsonType::kObject)}};
  for (const auto& [known, types] : names) {
    if (name == known) return types;
  }
  return AnyType();
}

JsonTypes TypeOfValue(const ordered_json& value) {
  if (value.is_number_integer()) return Only(JsonType::kInteger) | Only(JsonType::kNumber);
  return NamedType(value.type_name());
}

JsonTypes TypesOf(const ordered_json& schema, const ordered_json& top, int depth) {
  if (!schema.is_object() || depth > kMaxDepth) return AnyType();
  JsonTypes types;
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    const ordered_json* definition = grammar::FindDefinition(top, *reference);
    return definition == nullptr ? AnyType() : TypesOf(*definition, top, depth + 1);
  }
  if (schema.contains("const")) return TypeOfValue(schema["const"]);
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const ordered_json& value : *values) types |= TypeOfValue(value);
    return types;
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) return NamedType(*type);
    for (const ordered_json& one : *type) types |= NamedType(one);
    return types;
  }
  for (const char* name : {"anyOf", "oneOf"}) {
    const auto choices = schema.find(name);
    if (choices == schema.end() || !choices->is_array()) continue;
    for (const ordered_json& one : *choices) types |= TypesOf(one, top, depth + 1);
    return types;
  }
  return schema.contains("properties") ? Only(JsonType::kObject) : AnyType();
}

}  // namespace

JsonTypes TypesOf(const ordered_json& schema, const ordered_json& top) {
  return TypesOf(schema, top, 0);
}

}  // namespace convene::openai
