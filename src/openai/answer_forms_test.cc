#include "openai/answer_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "grammar/automaton.h"

namespace convene::openai {
namespace {

using ::testing::HasSubstr;

const AnswerSyntax kTags = {.calls = CallForm::kObjects,
                            .call_begin = "<tool_call>",
                            .call_end = "</tool_call>",
                            .think_begin = "<think>",
                            .think_end = "</think>"};
const AnswerSyntax kBrackets = {.calls = CallForm::kArray, .section_begin = "[TOOL_CALLS]"};
const AnswerSyntax kFences = {.calls = CallForm::kNamed,
                              .section_begin = "<s>",
                              .section_end = "</s>",
                              .call_begin = "<c>",
                              .separator = "<sep>",
                              .call_end = "</c>",
                              .has_fences = true};
const AnswerSyntax kChannels = {.calls = CallForm::kChannels};

constexpr const char* kTools =
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

std::string With(const std::string& more) { return std::string(kTools) + ", " + more; }

TEST(AnswerForms, RequiredCallsAreWrittenAsTheModelWritesThem) {
  const std::string required = With(R"("tool_choice": "required")");
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string other =
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\": []}}\n</tool_call>";
  EXPECT_TRUE(Accepts(kTags, required, call));
  EXPECT_TRUE(Accepts(kTags, required, call + "\n" + other));
  EXPECT_TRUE(Accepts(kTags, required, "<think>What of f? </think>\n\n" + call));
  EXPECT_FALSE(Accepts(kTags, required, "No."));
  EXPECT_FALSE(
      Accepts(kTags, required,
              "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"1\"}}\n</tool_call>"));
  const std::string one = With(R"("tool_choice": "required", "parallel_tool_calls": false)");
  EXPECT_FALSE(Accepts(kTags, one, call + "\n" + other));
  const std::string named =
      With(R"("tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_TRUE(Accepts(kTags, named, other));
  EXPECT_FALSE(Accepts(kTags, named, call));
  // A prompt that has begun to think, and one that has thought.
  EXPECT_FALSE(Accepts(kTags, named, other, "<think>\n"));
  EXPECT_TRUE(Accepts(kTags, named, "So</think>\n" + other, "<think>\n"));
  EXPECT_FALSE(Accepts(kTags, named, "<think></think>" + other, "<think>\n\n</think>\n\n"));

  EXPECT_TRUE(Accepts(kBrackets, required,
                      R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, )"
                      R"({"name": "g", "arguments": {}}])"));
  EXPECT_TRUE(Accepts(kFences, required, "<s><c>function<sep>f\n```json\n{\"a\": 3}\n```</c></s>"));
  EXPECT_TRUE(Accepts(kChannels, required,
                      "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=functions.f"
                      "<|channel|>commentary json<|message|>{\"a\":1}"));
}

TEST(AnswerForms, ContentIsJsonWhereThatIsAsked) {
  const std::string schema = R"("response_format": {"type": "json_schema", "json_schema":
      {"name": "n", "schema": {"type": "object", "properties": {"b": {"type": "boolean"}},
       "required": ["b"]}}})";
  EXPECT_TRUE(Accepts({}, schema, R"({"b": true})"));
  EXPECT_FALSE(Accepts({}, schema, "{}"));
  EXPECT_TRUE(Accepts(kTags, schema, "<think>x</think>\n{\"b\": true}"));
  EXPECT_TRUE(Accepts(kChannels, schema, "<|channel|>final<|message|>{\"b\": true}"));
  EXPECT_TRUE(Accepts({}, R"("response_format": {"type": "json_object"})", R"({"x": [{}, 1]})"));
  EXPECT_FALSE(Accepts({}, R"("response_format": {"type": "json_object"})", "[]"));
  // Or a call, where tools may be called.
  const std::string both = With(schema);
  EXPECT_TRUE(Accepts(kTags, both, R"({"b": true})"));
  EXPECT_TRUE(
      Accepts(kTags, both, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Accepts(kTags, both, "text"));
}

TEST(AnswerForms, StrictToolsAreKeptToWithinText) {
  std::string strict = kTools;
  strict.replace(strict.find("\"name\": \"f\""), 11, "\"name\": \"f\", \"strict\": true");
  EXPECT_TRUE(Accepts(kTags, strict, "Only < text."));
  EXPECT_TRUE(Accepts(kTags, strict,
                      "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
                      "</tool_call>"));
  EXPECT_FALSE(
      Accepts(kTags, strict, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Accepts(kTags, strict, "<tool_call>what"));
  EXPECT_TRUE(Accepts(kChannels, strict, "<|channel|>final<|message|>Any."));
}

TEST(AnswerForms, WhatCannotBeEnforcedIsRefusedByItsField) {
  EXPECT_EQ(Refusal({}, With(R"("tool_choice": "required")")).field, "tool_choice");
  EXPECT_EQ(Refusal({}, With(R"("parallel_tool_calls": false)")).field, "tools");
  const FieldError pattern = Refusal({}, R"("response_format": {"type": "json_schema",
      "json_schema": {"schema": {"type": "string", "pattern": "a"}}})");
  EXPECT_EQ(pattern.field, "response_format");
  EXPECT_THAT(pattern.error.message, HasSubstr("\"pattern\""));
  const FieldError minimum = Refusal(
      kTags, R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
                "parameters": {"properties": {"x": {"type": "integer", "minimum": 1}}}}}])");
  EXPECT_EQ(minimum.field, "tools");
  EXPECT_THAT(minimum.error.message, HasSubstr("tools[0].function.parameters"));
  EXPECT_EQ(Refusal(kTags, kTools).error.message, "none");
}

}  // namespace
}  // namespace convene::openai
