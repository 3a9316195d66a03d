#include "openai/parameter_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/quote.h"
#include "grammar/json_schema.h"
#include "openai/parameter_types.h"

namespace convene::openai {
namespace {

using grammar::Grammar;
using nlohmann::ordered_json;
using Element = Grammar::Element;
using Sequence = Grammar::Sequence;

constexpr const char* kDefinitions[] = {"$defs", "definitions"};

class Parameters {
 public:
  Parameters(const AnswerSyntax& syntax, const ordered_json& top, Grammar* grammar)
      : syntax_(syntax), top_(top), grammar_(*grammar) {}

  // Any number of them, with any names and texts.
  Sequence Any() {
    const Element any = grammar_.AddRule();
    Sequence one = grammar_.Text(syntax_.key_begin);
    one.push_back(grammar_.TextUntil(syntax_.key_end));
    grammar_.AppendText(&one, "\n" + syntax_.value_begin);
    Grammar::Append(&one, FreeText());
    one.push_back(any);
    grammar_.AddAlternative(any, {});
    grammar_.AddAlternative(any, one);
    return {any};
  }

  Result<Sequence> OfProperties(const ordered_json& properties, const ordered_json& required) {
    Sequence all;
    for (const auto& [name, schema] : properties.items()) {
      if (name.find(syntax_.key_end) != std::string::npos) {
        return Error{fmt::format("the name {} has the tag that ends a name within", Quote(name))};
      }
      Sequence parameter =
          grammar_.Text(syntax_.key_begin + name + syntax_.key_end + "\n" + syntax_.value_begin);
      const Result<Element> value = Value(name, schema);
      if (!value) return value.error();
      parameter.push_back(*value);
      const Element rule = grammar_.AddRule();
      grammar_.AddAlternative(rule, parameter);
      const bool is_required = std::ranges::count(required, ordered_json(name)) > 0;
      if (!is_required) grammar_.AddAlternative(rule, {});
      all.push_back(rule);
    }
    return all;
  }

 private:
  // What ends a value; a value without a tag before it has lines of its own.
  std::string End() const {
    return (syntax_.value_begin.empty() ? "\n" : "") + syntax_.value_end + "\n";
  }

  Sequence FreeText() {
    Sequence text = {grammar_.TextUntil(syntax_.value_end)};
    grammar_.AppendText(&text, "\n");
    return text;
  }

  // With its end.
  Result<Element> Value(const std::string& name, const ordered_json& schema) {
    const Element rule = grammar_.AddRule();
    const JsonTypes types = TypesOf(schema, top_);
    is_free_ = false;
    if (const Status added = AddValue(schema, rule); !added) {
      return added.error().At(fmt::format("the parameter {}", Quote(name)));
    }
    const bool may_be_more = types[static_cast<size_t>(JsonType::kArray)] ||
                             types[static_cast<size_t>(JsonType::kObject)];
    if (!is_free_ || !may_be_more || types.all()) return rule;
    return Error{fmt::format(
        "the parameter {} may be a string, and an array or an object, which cannot be told apart "
        "in the form that the model writes: give it one of the types",
        Quote(name))};
  }

  // The alternatives of a schema, which grammar::AddJsonSchema has found to be one.
  Status AddValue(const ordered_json& schema, Element rule) {
    if (schema.is_object() && schema.contains("$ref")) {
      return AddValue(*grammar::FindDefinition(top_, schema["$ref"]), rule);
    }
    if (schema.is_object() && schema.contains("anyOf")) {
      for (const ordered_json& one : schema["anyOf"]) {
        if (const Status added = AddValue(one, rule); !added) return added;
      }
      return {};
    }
    const JsonTypes types = TypesOf(schema, top_);
    const JsonTypes text = Only(JsonType::kString);
    if ((types & text).none()) return AddJson(schema, rule);
    if (schema.is_object() && (schema.contains("enum") || schema.contains("const"))) {
      return AddTexts(schema, rule);
    }
    is_free_ = true;
    grammar_.AddAlternative(rule, FreeText());
    if (types == text || types.all()) return {};
    ordered_json others = schema;  // of a list of types
    std::erase(others["type"].get_ref<ordered_json::array_t&>(), ordered_json("string"));
    return AddJson(others, rule);
  }

  Status AddJson(ordered_json schema, Element rule) {
    for (const char* name : kDefinitions) {
      if (top_.contains(name)) schema[name] = top_[name];
    }
    const Result<Element> json = grammar::AddJsonSchema(schema, &grammar_);
    if (!json) return json.error();
    Sequence value = {*json};
    grammar_.AppendText(&value, End());
    grammar_.AddAlternative(rule, value);
    return {};
  }

  // enum and const: strings as they are.
  Status AddTexts(const ordered_json& schema, Element rule) {
    const ordered_json values =
        schema.contains("enum") ? schema["enum"] : ordered_json::array({schema["const"]});
    for (const ordered_json& value : values) {
      if (schema.contains("const") && value != schema["const"]) continue;
      if (schema.contains("type") &&
          (TypesOf({{"const", value}}, top_) & TypesOf({{"type", schema["type"]}}, top_)).none()) {
        continue;
      }
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (text.find(syntax_.value_end) != std::string::npos) {
        return Error{fmt::format("{} has the tag that ends a parameter within", Quote(text))};
      }
      grammar_.AddAlternative(rule, grammar_.Text(text + End()));
    }
    return {};
  }

  const AnswerSyntax& syntax_;
  const ordered_json& top_;
  Grammar& grammar_;
  bool is_free_ = false;  // a value may be any text
};

}  // namespace

Result<Sequence> AddParameters(const AnswerSyntax& syntax, const ordered_json& schema,
                               Grammar* grammar) {
  Parameters parameters(syntax, schema, grammar);
  if (schema.is_null()) return parameters.Any();
  Grammar scratch;  // whether it is a schema that is supported
  if (const auto read = grammar::AddJsonSchema(schema, &scratch); !read) return read.error();
  const ordered_json properties = schema.value("properties", ordered_json::object());
  const ordered_json more = schema.value("additionalProperties", ordered_json(true));
  const bool is_plain = !schema.contains("$ref") && !schema.contains("anyOf") &&
                        !schema.contains("enum") && !schema.contains("const");
  if (!is_plain || !more.is_boolean()) {
    return Error{
        "a schema of parameters must be an object with properties, since the model writes each "
        "parameter by itself"};
  }
  if (properties.empty() && more == true) return parameters.Any();
  return parameters.OfProperties(properties, schema.value("required", ordered_json::array()));
}

}  // namespace convene::openai
