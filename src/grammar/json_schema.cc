#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/quote.h"
#include "grammar/automaton.h"
#include "grammar/json_text.h"

namespace convene::grammar {
namespace {

using nlohmann::ordered_json;
using Element = Grammar::Element;
using Sequence = Grammar::Sequence;
using Strings = std::vector<std::string>;

constexpr size_t kMaxElements = size_t{1} << 20;
constexpr int kMaxItems = 1000;
constexpr int kMaxDepth = 64;  // of schemas within schemas, with those that are referred to

// Values between which the automaton may have to choose at one place, with room for what surrounds
// them. A schema that is no enumeration counts as a few, and each property of an object, too: as
// many as there are stacks where spaces, a number or an end may come.
constexpr size_t kMaxWays = size_t{1} << 16;
constexpr size_t kFewWays = 8;
static_assert(2 * kMaxWays <= Automaton::kMaxEntries);

constexpr const char* kDescribing[] = {"title",       "description", "default",  "examples",
                                       "$schema",     "$id",         "$comment", "$defs",
                                       "definitions", "deprecated",  "readOnly", "writeOnly"};

constexpr const char* kOfObjects[] = {"properties", "required", "additionalProperties"};
constexpr const char* kOfArrays[] = {"items", "minItems", "maxItems"};

bool Describes(const std::string& keyword) {
  return std::ranges::find(kDescribing, keyword) != std::end(kDescribing);
}

class Reader {
 public:
  Reader(const ordered_json& top, Grammar* grammar)
      : top_(top), grammar_(*grammar), json_(grammar) {}

  Result<Element> Read(const ordered_json& schema, const std::string& place, int depth) {
    if (grammar_.num_elements() > kMaxElements) {
      return Error{"the schema is too large: it needs more than a million rules"};
    }
    if (depth > kMaxDepth) {
      return Error{
          fmt::format("{}: schemas are nested or refer to each other more than {} deep; "
                      "one that refers to itself is not supported",
                      Shortened(place), kMaxDepth)};
    }
    if (schema.is_boolean() && schema.get<bool>()) {
      num_units_ += kFewWays;
      return json_.Value(kMaxFreeDepth);
    }
    if (!schema.is_object()) return Error{fmt::format("{} must be a schema, an object", place)};
    if (schema.contains("$ref")) return ReadReference(schema, place, depth);
    if (schema.contains("anyOf")) return ReadAnyOf(schema, place, depth);
    if (schema.contains("enum") || schema.contains("const")) return ReadValues(schema, place);
    Strings types;
    if (const Status read = ReadTypes(schema, place, &types); !read) return read.error();
    if (types.empty()) {
      if (const Status known = CheckTyped(schema, place, {}); !known) return known.error();
      num_units_ += kFewWays;
      return json_.Value(kMaxFreeDepth);
    }
    const Element rule = grammar_.AddRule();
    size_t num_ways = 0;
    for (const std::string& type : types) {
      const Result<Element> one = ReadType(schema, type, types.size() > 1, place, depth);
      if (!one) return one;
      grammar_.AddAlternative(rule, {*one});
      num_ways += WaysOf(*one);
    }
    return WithWays(rule, num_ways);
  }

 private:
  static std::string Shortened(const std::string& place) {
    constexpr size_t kMost = 120;
    return place.size() <= kMost ? place : place.substr(0, kMost) + "...";
  }

  // How many ways on there may be at one place within the rule's text.
  size_t WaysOf(Element rule) const {
    const auto found = num_ways_.find(rule.index);
    return found == num_ways_.end() ? kFewWays : found->second;
  }

  Element WithWays(Element rule, size_t num_ways) {
    // Definitions that several schemas refer to are the same rules, and count once.
    num_ways_[rule.index] = std::min(num_ways, num_units_);
    return rule;
  }

  // `allowed`: besides those that describe.
  static Status CheckKeywords(const ordered_json& schema, const std::string& place,
                              const Strings& allowed) {
    for (const auto& [keyword, value] : schema.items()) {
      if (Describes(keyword) || std::ranges::find(allowed, keyword) != allowed.end()) continue;
      return Error{fmt::format("the keyword {} at {} is not supported", Quote(keyword), place)};
    }
    return {};
  }

  // Of a schema whose keywords depend on its type.
  static Status CheckTyped(const ordered_json& schema, const std::string& place,
                           const Strings& allowed) {
    for (const auto& [keyword, value] : schema.items()) {
      if (std::ranges::find(allowed, keyword) != allowed.end()) continue;
      const bool is_of_objects = std::ranges::find(kOfObjects, keyword) != std::end(kOfObjects);
      const bool is_of_arrays = std::ranges::find(kOfArrays, keyword) != std::end(kOfArrays);
      if (!is_of_objects && !is_of_arrays) continue;
      return Error{fmt::format("the keyword {} at {} needs \"type\": \"{}\" beside it",
                               Quote(keyword), place, is_of_objects ? "object" : "array")};
    }
    return CheckKeywords(schema, place, allowed);
  }

  Result<Element> ReadReference(const ordered_json& schema, const std::string& place, int depth) {
    if (const Status known = CheckKeywords(schema, place, {"$ref"}); !known) return known.error();
    const ordered_json& reference = schema["$ref"];
    if (const ordered_json* definition = FindDefinition(top_, reference)) {
      const auto known = definitions_.find(definition);
      if (known != definitions_.end() && depth <= known->second.depth) return known->second.rule;
      const auto text = reference.get<std::string>();
      const Result<Element> rule =
          Read(*definition, place + text.substr(text.rfind('/')), depth + 1);
      if (rule) definitions_.insert_or_assign(definition, Definition{*rule, depth});
      return rule;
    }
    return Error{fmt::format("\"$ref\" at {} must refer to an entry of \"$defs\", not to {}", place,
                             Shortened(Printable(reference.dump())))};
  }

  Result<Element> ReadAnyOf(const ordered_json& schema, const std::string& place, int depth) {
    if (const Status known = CheckKeywords(schema, place, {"anyOf"}); !known) return known.error();
    const ordered_json& schemas = schema["anyOf"];
    if (!schemas.is_array() || schemas.empty()) {
      return Error{fmt::format("\"anyOf\" at {} must be an array of at least one schema", place)};
    }
    const Element rule = grammar_.AddRule();
    size_t num_ways = 0;
    for (size_t i = 0; i < schemas.size(); ++i) {
      const Result<Element> one =
          Read(schemas[i], fmt::format("{}.anyOf[{}]", place, i), depth + 1);
      if (!one) return one;
      grammar_.AddAlternative(rule, {*one});
      num_ways += 1 + WaysOf(*one);
      ++num_units_;
      if (std::min(num_ways, num_units_) <= kMaxWays) continue;
      return Error{fmt::format(
          "the alternatives of \"anyOf\" at {} have too many values: those of enumerations, and "
          "about {} for any other schema and for each property of an object, may be {} together",
          place, kFewWays, kMaxWays)};
    }
    return WithWays(rule, num_ways);
  }

  static bool HasType(const ordered_json& value, const Strings& types) {
    return types.empty() || std::ranges::any_of(types, [&](const std::string& type) {
             const bool is_integral =
                 value.is_number_float() && value.get<double>() == std::floor(value.get<double>());
             return (type == "object" && value.is_object()) ||
                    (type == "array" && value.is_array()) ||
                    (type == "string" && value.is_string()) ||
                    (type == "number" && value.is_number()) ||
                    (type == "integer" && (value.is_number_integer() || is_integral)) ||
                    (type == "boolean" && value.is_boolean()) ||
                    (type == "null" && value.is_null());
           });
  }

  // enum and const: the values as they are.
  Result<Element> ReadValues(const ordered_json& schema, const std::string& place) {
    if (const Status known = CheckKeywords(schema, place, {"enum", "const", "type"}); !known) {
      return known.error();
    }
    Strings types;
    if (const Status read = ReadTypes(schema, place, &types); !read) return read.error();
    ordered_json values = ordered_json::array();
    if (schema.contains("enum")) {
      if (!schema["enum"].is_array()) {
        return Error{fmt::format("\"enum\" at {} must be an array", place)};
      }
      values = schema["enum"];
      if (schema.contains("const"))
        std::erase_if(values.get_ref<ordered_json::array_t&>(),
                      [&](const ordered_json& v) { return v != schema["const"]; });
    } else {
      values.push_back(schema["const"]);
    }
    std::erase_if(values.get_ref<ordered_json::array_t&>(),
                  [&](const ordered_json& v) { return !HasType(v, types); });
    if (values.empty()) return Error{fmt::format("no value satisfies the schema at {}", place)};
    if (values.size() > kMaxWays) {
      return Error{fmt::format("\"enum\" at {} has {} values, and at most {} are supported", place,
                               values.size(), kMaxWays)};
    }
    const Element rule = grammar_.AddRule();
    num_units_ += values.size();
    for (const ordered_json& value : values) {
      grammar_.AddAlternative(rule, grammar_.Text(value.dump()));
    }
    return WithWays(rule, values.size());
  }

  // None: all.
  static Status ReadTypes(const ordered_json& schema, const std::string& place, Strings* types) {
    const auto found = schema.find("type");
    if (found == schema.end()) {
      if (schema.contains("properties")) types->push_back("object");
      return {};
    }
    const ordered_json list = found->is_array() ? *found : ordered_json::array({*found});
    for (const ordered_json& type : list) {
      constexpr const char* kTypes[] = {"object",  "array",   "string", "number",
                                        "integer", "boolean", "null"};
      if (!type.is_string() ||
          std::ranges::find(kTypes, type.get<std::string>()) == std::end(kTypes)) {
        return Error{fmt::format("\"type\" at {} has {}, which is no type of JSON", place,
                                 Shortened(Printable(type.dump())))};
      }
      types->push_back(type.get<std::string>());
    }
    if (types->empty()) return Error{fmt::format("\"type\" at {} has no type", place)};
    return {};
  }

  // `is_one_of`: keywords of the other types are there, too.
  Result<Element> ReadType(const ordered_json& schema, const std::string& type, bool is_one_of,
                           const std::string& place, int depth) {
    Strings allowed = {"type"};
    if (type == "object" || is_one_of) {
      allowed.insert(allowed.end(), std::begin(kOfObjects), std::end(kOfObjects));
    }
    if (type == "array" || is_one_of) {
      allowed.insert(allowed.end(), std::begin(kOfArrays), std::end(kOfArrays));
    }
    if (const Status known = CheckTyped(schema, place, allowed); !known) return known.error();
    num_units_ += kFewWays;
    if (type == "object") return ReadObject(schema, place, depth);
    if (type == "array") return ReadArray(schema, place, depth);
    if (type == "string") return json_.String();
    if (type == "number") return json_.Number();
    if (type == "integer") return json_.Integer();
    const Element rule = grammar_.AddRule();
    if (type == "null") {
      grammar_.AddAlternative(rule, grammar_.Text("null"));
    } else {
      grammar_.AddAlternative(rule, grammar_.Text("true"));
      grammar_.AddAlternative(rule, grammar_.Text("false"));
    }
    return rule;
  }

  Result<std::optional<int>> ReadCount(const ordered_json& schema, const char* keyword,
                                       const std::string& place) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return std::optional<int>();
    if (!found->is_number_integer() || found->get<double>() < 0 ||
        found->get<double>() > kMaxItems) {
      return Error{fmt::format("{} at {} must be an integer from 0 to {}", Quote(keyword), place,
                               kMaxItems)};
    }
    return std::optional(found->get<int>());
  }

  Result<Element> ReadArray(const ordered_json& schema, const std::string& place, int depth) {
    const auto min = ReadCount(schema, "minItems", place);
    const auto max = ReadCount(schema, "maxItems", place);
    if (!min || !max) return min ? max.error() : min.error();
    if (*max && **max < min->value_or(0)) {
      return Error{fmt::format("\"maxItems\" at {} is below \"minItems\"", place)};
    }
    Element items = {};
    if (schema.contains("items")) {
      const Result<Element> read = Read(schema["items"], place + ".items", depth + 1);
      if (!read) return read;
      items = *read;
    } else {
      items = json_.Value(kMaxFreeDepth - 1);
    }
    const size_t num_ways = kFewWays + WaysOf(items);
    return WithWays(json_.ArrayOf(items, min->value_or(0), *max), num_ways);
  }

  static Result<Strings> ReadRequired(const ordered_json& schema, const std::string& place) {
    const auto found = schema.find("required");
    if (found == schema.end()) return Strings{};
    Strings required;
    if (found->is_array()) {
      for (const ordered_json& name : *found) {
        if (name.is_string()) required.push_back(name.get<std::string>());
      }
    }
    if (!found->is_array() || required.size() != found->size()) {
      return Error{fmt::format("\"required\" at {} must be an array of strings", place)};
    }
    for (const std::string& name : required) {
      if (schema.contains("properties") && schema["properties"].contains(name)) continue;
      return Error{fmt::format("\"required\" at {} names {}, which is not in \"properties\"", place,
                               Quote(name))};
    }
    return required;
  }

  Result<Element> ReadObject(const ordered_json& schema, const std::string& place, int depth) {
    const auto properties = schema.find("properties");
    if (properties != schema.end() && !properties->is_object()) {
      return Error{fmt::format("\"properties\" at {} must be an object", place)};
    }
    const Result<Strings> required = ReadRequired(schema, place);
    if (!required) return required.error();
    const ordered_json more = schema.value("additionalProperties", ordered_json(true));
    if (properties == schema.end() || properties->empty()) {
      if (more == ordered_json(true)) return json_.Object(kMaxFreeDepth);
      if (more != ordered_json(false)) {
        const Result<Element> value = Read(more, place + ".additionalProperties", depth + 1);
        if (!value) return value;
        return WithWays(json_.ObjectOf(*value), kFewWays + WaysOf(*value));
      }
    } else if (!more.is_boolean()) {
      return Error{
          fmt::format("the keyword \"additionalProperties\" at {} may only be true or "
                      "false beside \"properties\"",
                      place)};
    }
    return ReadProperties(properties == schema.end() ? ordered_json::object() : *properties,
                          *required, place, depth);
  }

  Result<Element> ReadProperties(const ordered_json& properties, const Strings& required,
                                 const std::string& place, int depth) {
    const Element space = json_.Space();
    const Element comma = grammar_.Bytes(OneOf(","));
    const Element end = grammar_.AddRule();
    grammar_.AddAlternative(end, {space, grammar_.Bytes(OneOf("}"))});
    std::vector<Sequence> members;
    Strings names;
    size_t most_ways = 0;  // of a value
    for (const auto& [name, schema] : properties.items()) {
      const Result<Element> value = Read(schema, fmt::format("{}.{}", place, name), depth + 1);
      if (!value) return value;
      most_ways = std::max(most_ways, WaysOf(*value));
      Sequence member = {space};
      grammar_.AppendText(&member, ordered_json(name).dump() + ":");
      Grammar::Append(&member, {space, *value});
      members.push_back(std::move(member));
      names.push_back(name);
    }
    // From the last property to the first: what follows where one was written, and where none.
    Element behind_one = end;
    Element behind_none = end;
    for (size_t i = members.size(); i-- > 0;) {
      const bool is_required = std::ranges::find(required, names[i]) != required.end();
      Sequence as_next = {comma};
      Grammar::Append(&as_next, members[i]);
      as_next.push_back(behind_one);
      Sequence as_first = members[i];
      as_first.push_back(behind_one);
      const Element next = grammar_.AddRule();
      const Element first = grammar_.AddRule();
      grammar_.AddAlternative(next, as_next);
      grammar_.AddAlternative(first, as_first);
      if (!is_required) {
        grammar_.AddAlternative(next, {behind_one});
        grammar_.AddAlternative(first, {behind_none});
      }
      behind_one = next;
      behind_none = first;
    }
    const Element object = grammar_.AddRule();
    grammar_.AddAlternative(object, {grammar_.Bytes(OneOf("{")), behind_none});
    num_units_ += kFewWays * names.size();
    return WithWays(object, kFewWays * (1 + names.size()) + most_ways);
  }

  // An entry of "$defs" that was read, and the depth at which: where it is not deeper, it is known
  // that what it refers to is not nested too deep.
  struct Definition {
    Element rule;
    int depth;
  };

  const ordered_json& top_;
  Grammar& grammar_;
  JsonText json_;
  std::map<const ordered_json*, Definition> definitions_;
  std::map<uint32_t, size_t> num_ways_;  // by rule; others have few
  size_t num_units_ = 0;                 // ways of all schemas that were read
};

// A step of a pointer, in which ~1 is a slash and ~0 a tilde.
std::string Unescaped(std::string step) {
  size_t at = 0;
  while ((at = step.find('~', at)) != std::string::npos) {
    if (step.compare(at, 2, "~1") == 0) {
      step.replace(at, 2, "/");
    } else if (step.compare(at, 2, "~0") == 0) {
      step.replace(at, 2, "~");
    }
    ++at;
  }
  return step;
}

}  // namespace

const ordered_json* FindDefinition(const ordered_json& top, const ordered_json& reference) {
  if (!top.is_object() || !reference.is_string()) return nullptr;
  const auto text = reference.get<std::string>();
  for (const char* name : {"$defs", "definitions"}) {
    const std::string prefix = fmt::format("#/{}/", name);
    if (!text.starts_with(prefix)) continue;
    const auto definitions = top.find(name);
    if (definitions == top.end() || !definitions->is_object()) return nullptr;
    const auto found = definitions->find(Unescaped(text.substr(prefix.size())));
    return found == definitions->end() ? nullptr : &*found;
  }
  return nullptr;
}

Result<Element> AddJsonSchema(const ordered_json& schema, Grammar* grammar) {
  return Reader(schema, grammar).Read(schema, "the top", 0);
}

Element AddJsonObject(Grammar* grammar) { return JsonText(grammar).Object(kMaxFreeDepth); }

}  // namespace convene::grammar
