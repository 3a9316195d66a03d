#include "openai/answer_parser.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace convene::openai {
namespace {

using Kind = AnswerEvent::Kind;

const AnswerSyntax kTags = {.calls = CallForm::kObjects,
                            .call_begin = "<tool_call>",
                            .call_end = "</tool_call>",
                            .think_begin = "<think>",
                            .think_end = "</think>"};
const AnswerSyntax kBrackets = {.calls = CallForm::kArray, .section_begin = "[TOOL_CALLS]"};
const AnswerSyntax kNamed = {.calls = CallForm::kNamed,
                             .section_begin = "<｜tool▁calls▁begin｜>",
                             .section_end = "<｜tool▁calls▁end｜>",
                             .call_begin = "<｜tool▁call▁begin｜>",
                             .separator = "<｜tool▁sep｜>",
                             .call_end = "<｜tool▁call▁end｜>",
                             .has_fences = true,
                             .think_begin = "<think>",
                             .think_end = "</think>"};
const AnswerSyntax kNumbered = {.calls = CallForm::kNamed,
                                .section_begin = "<|tool_calls_section_begin|>",
                                .section_end = "<|tool_calls_section_end|>",
                                .call_begin = "<|tool_call_begin|>",
                                .separator = "<|tool_call_argument_begin|>",
                                .call_end = "<|tool_call_end|>",
                                .has_numbers = true};
const AnswerSyntax kCoder = {.calls = CallForm::kParameters,
                             .call_begin = "<tool_call>",
                             .call_end = "</tool_call>",
                             .name_begin = "<function=",
                             .name_end = ">",
                             .key_begin = "<parameter=",
                             .key_end = ">",
                             .value_end = "</parameter>"};
const AnswerSyntax kGlm = {.calls = CallForm::kParameters,
                           .call_begin = "<tool_call>",
                           .call_end = "</tool_call>",
                           .key_begin = "<arg_key>",
                           .key_end = "</arg_key>",
                           .value_begin = "<arg_value>",
                           .value_end = "</arg_value>"};
const AnswerSyntax kChannels = {.calls = CallForm::kChannels};

// Events of the same kind put together: "r:..." reasoning, "c:..." content, "f:..." a call's name,
// "a:..." its arguments.
std::vector<std::string> Merged(const std::vector<AnswerEvent>& events) {
  std::vector<std::string> merged;
  for (const AnswerEvent& event : events) {
    const char kind = "rcfa"[static_cast<int>(event.kind)];
    if (!merged.empty() && merged.back()[0] == kind && kind != 'f') {
      merged.back() += event.text;
    } else {
      merged.push_back(fmt::format("{}:{}", kind, event.text));
    }
  }
  return merged;
}

std::vector<std::string> Read(const AnswerReading& reading,
                              const std::vector<std::string>& pieces) {
  AnswerParser parser(reading);
  std::vector<AnswerEvent> events;
  const auto take = [&](std::vector<AnswerEvent> more) {
    for (AnswerEvent& event : more) events.push_back(std::move(event));
  };
  for (const std::string& piece : pieces) take(parser.Push(piece));
  take(parser.Finish());
  return Merged(events);
}

std::vector<std::string> Read(const AnswerSyntax& syntax, const std::string& text,
                              bool begins_in_reasoning = false) {
  return Read(AnswerReading{.syntax = syntax, .begins_in_reasoning = begins_in_reasoning}, {text});
}

using Strings = std::vector<std::string>;

TEST(AnswerParser, TellsReasoningFromContent) {
  EXPECT_EQ(Read(kTags, "<think>\nSo, well.\n</think>\n\nYes. "),
            (Strings{"r:So, well.", "c:Yes. "}));
  EXPECT_EQ(Read(kTags, "\n<think></think>Yes"), (Strings{"c:Yes"}));
  EXPECT_EQ(Read(kTags, "So.\n</think>\nYes", true), (Strings{"r:So.", "c:Yes"}));
  EXPECT_EQ(Read(kTags, "never done ", true), (Strings{"r:never done "}));
  // Whoever speaks of the word does not think.
  EXPECT_EQ(Read(kTags, "Write <think> first"), (Strings{"c:Write <think> first"}));
  EXPECT_EQ(Read(kTags, "<think>a</think>b <think>c</think>"),
            (Strings{"r:a", "c:b <think>c</think>"}));
  EXPECT_EQ(Read(AnswerSyntax{}, "<think>a</think> "), (Strings{"c:<think>a</think> "}));
  EXPECT_EQ(Read(kTags, ""), Strings{});
}

TEST(AnswerParser, ReadsCallsBetweenTags) {
  EXPECT_EQ(Read(kTags,
                 "<think>x</think>\nI look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": "
                 "{\"at\": \"</tool_call> \\\"}\"}}\n</tool_call>\n<tool_call>{\"name\":\"go\"}"
                 "</tool_call>\n"),
            (Strings{"r:x", "c:I look.", "f:look", "a:{\"at\": \"</tool_call> \\\"}\"}", "f:go",
                     "a:{}"}));
  // The name may come last, and the arguments as text.
  EXPECT_EQ(Read(kTags, R"(<tool_call>{"arguments": {"a": [1, {}]}, "name": "f"}</tool_call>)"),
            (Strings{"f:f", "a:{\"a\": [1, {}]}"}));
  EXPECT_EQ(
      Read(kTags, R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}", "id": 7}</tool_call>)"),
      (Strings{"f:f", "a:{\"a\": 1}"}));
  // Cut off within the arguments.
  EXPECT_EQ(Read(kTags, R"(<tool_call>{"name": "f", "arguments": {"a": "b)"),
            (Strings{"f:f", "a:{\"a\": \"b"}));
}

TEST(AnswerParser, WhatIsNoCallIsContent) {
  EXPECT_EQ(Read(kTags, "<tool_call>none</tool_call> x"),
            (Strings{"c:<tool_call>none</tool_call> x"}));
  EXPECT_EQ(Read(kTags, "a <tool_call>{\"arguments\": {}}</tool_call>"),
            (Strings{"c:a <tool_call>{\"arguments\": {}}</tool_call>"}));
  EXPECT_EQ(Read(kTags, "<tool_call>{\"name\": \"\"}</tool_call>"),
            (Strings{"c:<tool_call>{\"name\": \"\"}</tool_call>"}));
  EXPECT_EQ(Read(kTags, "a < b <tool"), (Strings{"c:a < b <tool"}));
  EXPECT_EQ(Read(kBrackets, "[TOOL_CALLS] x"), (Strings{"c:[TOOL_CALLS]x"}));
  EXPECT_EQ(Read(kNamed, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>odd<｜tool▁call▁end｜>"),
            (Strings{"c:odd"}));
}

TEST(AnswerParser, ReadsArraysOfCalls) {
  EXPECT_EQ(Read(kBrackets,
                 R"(Well. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g",
                    "arguments": {}, "id": "123456789"}] )"),
            (Strings{"c:Well.", "f:f", "a:{\"a\": 1}", "f:g", "a:{}"}));
}

// The character that ends a call which has begun goes with it, all its bytes.
TEST(AnswerParser, WhatFollowsACallThatIsCutShortBeginsWithAWholeCharacter) {
  for (const char* ended : {R"([TOOL_CALLS][{"name": "f" éü)", R"([TOOL_CALLS][{"name": "f",｜ü)",
                            R"([TOOL_CALLS][{"name": "f", "x" 😀ü)"}) {
    EXPECT_EQ(Read(kBrackets, ended), (Strings{"f:f", "c:ü"})) << ended;
  }
  // What is no call is said with all of it.
  EXPECT_EQ(Read(kBrackets, "[TOOL_CALLS][{éü"), (Strings{"c:[TOOL_CALLS][{éü"}));
}

TEST(AnswerParser, ReadsCallsWithNames) {
  EXPECT_EQ(
      Read(kNamed,
           "</think>Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}"
           "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{\"b\": "
           "2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           true),
      (Strings{"c:Look.", "f:f", "a:{\"a\": 1}", "f:g", "a:{\"b\": 2}"}));
  AnswerSyntax kimi = kNamed;
  kimi.separator = "<|sep|>";
  EXPECT_EQ(Read(kimi,
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>functions.f:0<|sep|>{}"
                 "<｜tool▁call▁end｜>"),
            (Strings{"f:f", "a:{}"}));
}

// Templates write a call and its result by that name, so it is what the client has to send back.
TEST(AnswerParser, CallsWithNumberedNamesHaveTheseAsIds) {
  const auto ids = [](const std::vector<std::string>& names) {
    std::string text = "<|tool_calls_section_begin|>";
    for (const std::string& name : names) {
      text += "<|tool_call_begin|>" + name + "<|tool_call_argument_begin|>{}<|tool_call_end|>";
    }
    Strings found;
    for (const AnswerEvent& event : AnswerParser({kNumbered}).Push(text)) {
      if (event.kind == Kind::kCall) found.push_back(event.text + " " + event.id);
    }
    return found;
  };
  EXPECT_EQ(ids({"functions.f:0", "functions.g:1 "}),
            (Strings{"f functions.f:0", "g functions.g:1"}));
  EXPECT_EQ(ids({"functions.f:7", "functions.f:8"}),
            (Strings{"f functions.f:7", "f functions.f:8"}));
  EXPECT_EQ(ids({"functions.f:1", "functions.f:1", "f", "functions.f:x"}),
            (Strings{"f functions.f:1", "f functions.f:2", "f functions.f:3", "f functions.f:4"}));
}

TEST(AnswerParser, ReadsCallsWithParameters) {
  const AnswerReading coder = {.syntax = kCoder,
                               .parameter_types = {{{"f", "zip"}, Only(JsonType::kString)}}};
  EXPECT_EQ(
      Read(coder, {"I look.\n<tool_call>\n<function=f>\n<parameter=zip>\n0123\n</parameter>\n"
                   "<parameter=n>\n4\n</parameter>\n<parameter=deep>\n{\"a\": [True]}\n"
                   "</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>"}),
      (Strings{"c:I look.", "f:f",
               R"(a:{"zip": "0123", "n": 4, "deep": "{\"a\": [True]}", "b": true})"}));
  EXPECT_EQ(Read(kCoder, "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
            (Strings{"f:f", "a:{}"}));
  EXPECT_EQ(Read(kGlm,
                 "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>two \"lines\"\n</arg_value>\n"
                 "<arg_key>n</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n"),
            (Strings{"f:f", R"(a:{"a": "two \"lines\"", "n": [1, 2]})"}));
  EXPECT_EQ(Read(kCoder, "a <tool_call>none</tool_call>"),
            (Strings{"c:a <tool_call>none</tool_call>"}));
  EXPECT_EQ(Read(kCoder, "<tool_call>\n<function=f>\n<parameter=a>\n1"), (Strings{"f:f"}));
}

TEST(AnswerParser, ParametersHaveTheTypesOfTheirSchema) {
  const auto value = [](const char* text, JsonTypes types) { return JsonOfParameter(text, types); };
  const JsonTypes text = Only(JsonType::kString);
  const JsonTypes text_or_null = text | Only(JsonType::kNull);
  EXPECT_EQ(value("123", text_or_null), R"("123")");
  EXPECT_EQ(value("true", text_or_null), R"("true")");
  EXPECT_EQ(value("null", text_or_null), "null");
  EXPECT_EQ(value("None", text_or_null), "null");
  EXPECT_EQ(value("None", text), R"("None")");
  EXPECT_EQ(value("\"a\"", text_or_null), R"("\"a\"")");
  EXPECT_EQ(value("123", text | Only(JsonType::kInteger)), "123");
  EXPECT_EQ(value("1.5", text | Only(JsonType::kInteger)), R"("1.5")");
  EXPECT_EQ(value("1", Only(JsonType::kNumber)), "1");
  EXPECT_EQ(value("[1]", text), R"("[1]")");
  EXPECT_EQ(value("\"a\"", AnyType()), R"("a")");
  EXPECT_EQ(value("a", Only(JsonType::kInteger)), R"("a")");
}

TEST(AnswerParser, ReadsChannels) {
  EXPECT_EQ(Read(kChannels,
                 "<|channel|>analysis<|message|>Hm. <|end|><|start|>assistant<|channel|>final"
                 "<|message|>Yes.\n<|return|>"),
            (Strings{"r:Hm. ", "c:Yes.\n"}));
  EXPECT_EQ(Read(kChannels,
                 "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>"
                 "commentary to=functions.look <|constrain|>json<|message|>{\"a\": 1}<|call|>"),
            (Strings{"c:I look.", "f:look", "a:{\"a\": 1}"}));
  EXPECT_EQ(Read(kChannels, " to=functions.look<|channel|>commentary json<|message|>{}"),
            (Strings{"f:look", "a:{}"}));
  EXPECT_EQ(Read(kChannels, "It knows no channels."), (Strings{"c:It knows no channels."}));
  EXPECT_EQ(Read(kChannels, "<|channel|>fin"), Strings{});
}

TEST(AnswerParser, HoldsBackBeginningsOfMarkersAndCharacters) {
  AnswerParser parser({kTags});
  EXPECT_EQ(Merged(parser.Push("Yes <tool_c")), (Strings{"c:Yes"}));
  EXPECT_EQ(Merged(parser.Push("alm> \xe2\x80")), (Strings{"c: <tool_calm>"}));
  EXPECT_EQ(Merged(parser.Push("\x94!")), (Strings{"c: \xe2\x80\x94!"}));
  EXPECT_EQ(Merged(parser.Push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":")),
            (Strings{"f:f", "a:{\"a\":"}));
}

// Whatever an answer is made of and however it is cut, the events are the same, and no text of a
// marker is said while it may be one.
TEST(AnswerParser, EveryWayToCutAnAnswerGivesTheSameEvents) {
  const std::vector<std::string> words = {"<think>",
                                          "</think>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "[TOOL_CALLS]",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          R"({"name": "f", "arguments": {"a": "b}"}})",
                                          R"({"name": "g"})",
                                          ",",
                                          "\"",
                                          "name",
                                          "\n",
                                          " ",
                                          "<｜tool▁calls▁begin｜>",
                                          "<｜tool▁call▁begin｜>",
                                          "function",
                                          "<｜tool▁sep｜>",
                                          "\n```json\n",
                                          "\n```",
                                          "<｜tool▁call▁end｜>",
                                          "<｜tool▁calls▁end｜>",
                                          "<|start|>",
                                          "assistant",
                                          "<|channel|>",
                                          "analysis",
                                          "commentary to=functions.f",
                                          "<|message|>",
                                          "<|end|>",
                                          "<|call|>",
                                          "<function=f>",
                                          "<parameter=a>",
                                          "</parameter>",
                                          "<arg_key>",
                                          "</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "é",
                                          "<",
                                          "｜",
                                          "text"};
  std::minstd_rand random(7);
  const auto below = [&](size_t limit) { return random() % limit; };
  for (const AnswerSyntax& syntax :
       {kTags, kBrackets, kNamed, kCoder, kGlm, kChannels, AnswerSyntax{}}) {
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (size_t count = below(12); count > 0; --count) text += words[below(words.size())];
      const AnswerReading reading = {.syntax = syntax, .begins_in_reasoning = round % 4 == 0};
      const Strings whole = Read(reading, {text});
      Strings pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t size = 1 + below(round % 2 == 0 ? 1 : 9);
        pieces.push_back(text.substr(at, size));
        at += size;
      }
      ASSERT_EQ(Read(reading, pieces), whole) << text;
    }
  }
}

}  // namespace
}  // namespace convene::openai
