#include "openai/answer_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "grammar/automaton.h"

namespace convene::openai {
namespace {

using ::testing::HasSubstr;

const AnswerSyntax kFormOfTags = {.calls = CallForm::kObjects,
                                  .call_begin = "<tool_call>",
                                  .call_end = "</tool_call>",
                                  .think_begin = "<think>",
                                  .think_end = "</think>"};
const AnswerSyntax kFormOfBrackets = {.calls = CallForm::kArray, .section_begin = "[TOOL_CALLS]"};
const AnswerSyntax kFences = {.calls = CallForm::kNamed,
                              .section_begin = "<s>",
                              .section_end = "</s>",
                              .call_begin = "<c>",
                              .separator = "<sep>",
                              .call_end = "</c>",
                              .has_fences = true};
const AnswerSyntax kFormOfNumbers = {.calls = CallForm::kNamed,
                                     .section_begin = "<s>",
                                     .section_end = "</s>",
                                     .call_begin = "<c>",
                                     .separator = "<sep>",
                                     .call_end = "</c>",
                                     .has_numbers = true};
const AnswerSyntax kFormOfCoder = {.calls = CallForm::kParameters,
                                   .call_begin = "<tool_call>",
                                   .call_end = "</tool_call>",
                                   .name_begin = "<function=",
                                   .name_end = ">",
                                   .function_end = "</function>",
                                   .key_begin = "<parameter=",
                                   .key_end = ">",
                                   .value_end = "</parameter>"};
const AnswerSyntax kFormOfGlm = {.calls = CallForm::kParameters,
                                 .call_begin = "<tool_call>",
                                 .call_end = "</tool_call>",
                                 .key_begin = "<arg_key>",
                                 .key_end = "</arg_key>",
                                 .value_begin = "<arg_value>",
                                 .value_end = "</arg_value>"};
const AnswerSyntax kFormOfChannels = {.calls = CallForm::kChannels};

constexpr const char* kToolsOfForms =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false}}},
       {"type": "function", "function": {"name": "g"}}])";

GenerationBody BodyOf(const std::string& fields) {
  const auto json =
      ParseOrderedJson(R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}");
  EXPECT_TRUE(json.ok()) << fields;
  auto parsed = ParseGenerationBody(*json, true, BodyOrigin::kServer, {});
  if (const auto* wrong = std::get_if<FieldError>(&parsed)) ADD_FAILURE() << wrong->error.message;
  return std::get<GenerationBody>(parsed);
}

bool Accepts(const AnswerSyntax& syntax, const std::string& fields, const std::string& text,
             const std::string& tail = "") {
  auto made = GrammarOf(syntax, tail, BodyOf(fields));
  if (const auto* wrong = std::get_if<FieldError>(&made)) {
    ADD_FAILURE() << wrong->error.message;
    return false;
  }
  auto& grammar = std::get<std::optional<grammar::Grammar>>(made);
  if (!grammar) return true;
  grammar::Automaton automaton(*std::move(grammar));
  int32_t state = automaton.StateOf(automaton.Start());
  for (const char byte : text) {
    state = automaton.Next(state, static_cast<unsigned char>(byte));
    if (state == grammar::Automaton::kDead) return false;
  }
  return automaton.MayEnd(state);
}

FieldError Refusal(const AnswerSyntax& syntax, const std::string& fields) {
  auto made = GrammarOf(syntax, "", BodyOf(fields));
  if (const auto* wrong = std::get_if<FieldError>(&made)) return *wrong;
  return {Error{"none"}, ""};
}

std::string With(const std::string& more) { return std::string(kToolsOfForms) + ", " + more; }

TEST(AnswerForms, RequiredCallsAreWrittenAsTheModelWritesThem) {
  const std::string required = With(R"("tool_choice": "required")");
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string other =
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\": []}}\n</tool_call>";
  EXPECT_TRUE(Accepts(kFormOfTags, required, call));
  EXPECT_TRUE(Accepts(kFormOfTags, required, call + "\n" + other));
  EXPECT_TRUE(Accepts(kFormOfTags, required, "<think>What of f? </think>\n\n" + call));
  EXPECT_FALSE(Accepts(kFormOfTags, required, "No."));
  EXPECT_FALSE(
      Accepts(kFormOfTags, required,
              "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"1\"}}\n</tool_call>"));
  const std::string one = With(R"("tool_choice": "required", "parallel_tool_calls": false)");
  EXPECT_FALSE(Accepts(kFormOfTags, one, call + "\n" + other));
  const std::string named =
      With(R"("tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_TRUE(Accepts(kFormOfTags, named, other));
  EXPECT_FALSE(Accepts(kFormOfTags, named, call));
  // A prompt that has begun to think, and one that has thought.
  EXPECT_FALSE(Accepts(kFormOfTags, named, other, "<think>\n"));
  EXPECT_TRUE(Accepts(kFormOfTags, named, "So</think>\n" + other, "<think>\n"));
  EXPECT_FALSE(Accepts(kFormOfTags, named, "<think></think>" + other, "<think>\n\n</think>\n\n"));

  EXPECT_TRUE(Accepts(kFormOfBrackets, required,
                      R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, )"
                      R"({"name": "g", "arguments": {}}])"));
  EXPECT_TRUE(Accepts(kFences, required, "<s><c>function<sep>f\n```json\n{\"a\": 3}\n```</c></s>"));
  EXPECT_TRUE(Accepts(kFormOfNumbers, required,
                      "<s><c>functions.f:0<sep>{\"a\": 3}</c><c>functions.f:1<sep>{\"a\": 4}</c>"
                      "<c>functions.g:2<sep>{}</c></s>"));
  EXPECT_FALSE(Accepts(kFormOfNumbers, required, "<s><c>functions.g:1<sep>{}</c></s>"));
  EXPECT_FALSE(Accepts(kFormOfNumbers, required,
                       "<s><c>functions.g:0<sep>{}</c><c>functions.g:0<sep>{}</c></s>"));
  EXPECT_TRUE(Accepts(kFormOfChannels, required,
                      "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=functions.f"
                      "<|channel|>commentary json<|message|>{\"a\":1}"));
}

TEST(AnswerForms, ContentIsJsonWhereThatIsAsked) {
  const std::string schema = R"("response_format": {"type": "json_schema", "json_schema":
      {"name": "n", "schema": {"type": "object", "properties": {"b": {"type": "boolean"}},
       "required": ["b"]}}})";
  EXPECT_TRUE(Accepts({}, schema, R"({"b": true})"));
  EXPECT_FALSE(Accepts({}, schema, "{}"));
  EXPECT_TRUE(Accepts(kFormOfTags, schema, "<think>x</think>\n{\"b\": true}"));
  EXPECT_TRUE(Accepts(kFormOfChannels, schema, "<|channel|>final<|message|>{\"b\": true}"));
  EXPECT_TRUE(Accepts({}, R"("response_format": {"type": "json_object"})", R"({"x": [{}, 1]})"));
  EXPECT_FALSE(Accepts({}, R"("response_format": {"type": "json_object"})", "[]"));
  // Or a call, where tools may be called.
  const std::string both = With(schema);
  EXPECT_TRUE(Accepts(kFormOfTags, both, R"({"b": true})"));
  EXPECT_TRUE(Accepts(kFormOfTags, both,
                      "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Accepts(kFormOfTags, both, "text"));
}

TEST(AnswerForms, StrictToolsAreKeptToWithinText) {
  std::string strict = kToolsOfForms;
  strict.replace(strict.find("\"name\": \"f\""), 11, "\"name\": \"f\", \"strict\": true");
  EXPECT_TRUE(Accepts(kFormOfTags, strict, "Only < text."));
  EXPECT_TRUE(Accepts(kFormOfTags, strict,
                      "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
                      "</tool_call>"));
  EXPECT_FALSE(Accepts(kFormOfTags, strict,
                       "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Accepts(kFormOfTags, strict, "<tool_call>what"));
  EXPECT_TRUE(Accepts(kFormOfChannels, strict, "<|channel|>final<|message|>Any."));
}

std::string CoderCall(const std::string& function, const std::string& parameters) {
  return "<tool_call>\n<function=" + function + ">\n" + parameters + "</function>\n</tool_call>";
}
std::string CoderValue(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(AnswerForms, CallsWithParametersBetweenTagsKeepToTheSchema) {
  const std::string required = With(R"("tool_choice": "required")");
  const std::string call = CoderCall("f", CoderValue("a", "12"));
  EXPECT_TRUE(Accepts(kFormOfCoder, required, call));
  EXPECT_TRUE(Accepts(kFormOfCoder, required, call + "\n" + CoderCall("g", "")));
  EXPECT_TRUE(Accepts(kFormOfCoder, required, CoderCall("g", CoderValue("any", "thing < 3"))));
  EXPECT_FALSE(Accepts(kFormOfCoder, required, CoderCall("f", "")));
  EXPECT_FALSE(Accepts(kFormOfCoder, required, CoderCall("f", CoderValue("a", "twelve"))));
  EXPECT_FALSE(Accepts(kFormOfCoder, required, CoderCall("f", CoderValue("b", "12"))));
  EXPECT_FALSE(Accepts(kFormOfCoder, required, "Text."));
  EXPECT_TRUE(Accepts(kFormOfGlm, required,
                      "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>12</arg_value>\n"
                      "</tool_call>"));
  const std::string one = With(R"("parallel_tool_calls": false)");
  EXPECT_TRUE(Accepts(kFormOfCoder, one, "I look.\n" + CoderCall("f", CoderValue("b", "any"))));
  EXPECT_FALSE(Accepts(kFormOfCoder, one, call + "\n" + call));
  const std::string json = With(R"("response_format": {"type": "json_object"})");
  EXPECT_TRUE(Accepts(kFormOfCoder, json, "{}"));
  EXPECT_TRUE(Accepts(kFormOfCoder, json, call));
  EXPECT_FALSE(Accepts(kFormOfCoder, json, "Text."));
}

TEST(AnswerForms, StrictParametersHaveTheirTypesBetweenTags) {
  const auto strict = [](const std::string& properties, const std::string& more = "") {
    return R"("tools": [{"type": "function", "function": {"name": "f", "strict": true,
        "parameters": {"type": "object", "additionalProperties": false, "properties": )" +
           properties + more + "}}}]";
  };
  const auto accepts = [&](const std::string& schema, const std::string& value) {
    const std::string fields = strict(R"({"p": )" + schema + "}", R"(, "required": ["p"],
        "$defs": {"one/two": {"enum": ["up", "down"]}})");
    return Accepts(kFormOfCoder, fields, "So:\n" + CoderCall("f", CoderValue("p", value)));
  };
  EXPECT_TRUE(accepts(R"({"type": "string"})", "any \"text\"\nof lines"));
  EXPECT_TRUE(accepts(R"({"enum": ["a b", 3]})", "a b"));
  EXPECT_FALSE(accepts(R"({"enum": ["a b", 3]})", "\"a b\""));
  EXPECT_TRUE(accepts(R"({"$ref": "#/$defs/one~1two"})", "down"));
  EXPECT_FALSE(accepts(R"({"$ref": "#/$defs/one~1two"})", "left"));
  EXPECT_TRUE(accepts(R"({"anyOf": [{"$ref": "#/$defs/one~1two"}, {"type": "null"}]})", "null"));
  EXPECT_TRUE(accepts(R"({"type": ["string", "null"]})", "text"));
  EXPECT_TRUE(accepts(R"({"type": ["integer", "null"]})", "null"));
  EXPECT_FALSE(accepts(R"({"type": ["integer", "null"]})", "text"));
  EXPECT_TRUE(accepts(R"({"type": "array", "items": {"type": "integer"}})", "[1, 2]"));
  EXPECT_FALSE(accepts(R"({"type": "array", "items": {"type": "integer"}})", "[\"1\"]"));
  EXPECT_TRUE(accepts(R"({})", "anything"));
  // Some may be left out, in the schema's order.
  const std::string two = strict(R"({"a": {"type": "integer"}, "b": {"type": "integer"}})");
  EXPECT_TRUE(Accepts(kFormOfCoder, two, CoderCall("f", "")));
  EXPECT_TRUE(Accepts(kFormOfCoder, two, CoderCall("f", CoderValue("b", "1"))));
  EXPECT_TRUE(
      Accepts(kFormOfCoder, two, CoderCall("f", CoderValue("a", "1") + CoderValue("b", "1"))));
  EXPECT_FALSE(
      Accepts(kFormOfCoder, two, CoderCall("f", CoderValue("b", "1") + CoderValue("a", "1"))));
  EXPECT_THAT(
      Refusal(kFormOfCoder, strict(R"({"p": {"type": ["string", "array"]}})")).error.message,
      HasSubstr("tools[0].function.parameters: the parameter \"p\" may be a string, and"));
  EXPECT_THAT(
      Refusal(kFormOfCoder, strict(R"({"p": {"type": "string", "pattern": "a"}})")).error.message,
      HasSubstr("\"pattern\""));
}

TEST(AnswerForms, WhatCannotBeEnforcedIsRefusedByItsField) {
  EXPECT_EQ(Refusal({}, With(R"("tool_choice": "required")")).field, "tool_choice");
  EXPECT_EQ(Refusal({}, With(R"("parallel_tool_calls": false)")).field, "tools");
  const FieldError pattern = Refusal({}, R"("response_format": {"type": "json_schema",
      "json_schema": {"schema": {"type": "string", "pattern": "a"}}})");
  EXPECT_EQ(pattern.field, "response_format");
  EXPECT_THAT(pattern.error.message, HasSubstr("\"pattern\""));
  const FieldError minimum =
      Refusal(kFormOfTags,
              R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
                "parameters": {"properties": {"x": {"type": "integer", "minimum": 1}}}}}])");
  EXPECT_EQ(minimum.field, "tools");
  EXPECT_THAT(minimum.error.message, HasSubstr("tools[0].function.parameters"));
  EXPECT_EQ(Refusal(kFormOfTags, kToolsOfForms).error.message, "none");
}

}  // namespace
}  // namespace convene::openai
