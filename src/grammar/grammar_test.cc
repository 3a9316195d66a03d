// Grammars of schemas: what they let through, token by token.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/json_schema.h"
#include "grammar/token_matcher.h"

namespace convene::grammar {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

Result<Grammar> Compile(const std::string& schema) {
  Grammar grammar;
  const auto root = AddJsonSchema(ordered_json::parse(schema), &grammar);
  if (!root) return root.error();
  grammar.SetRoot(*root);
  return grammar;
}

bool Accepts(Grammar grammar, const std::string& text) {
  Automaton automaton(std::move(grammar));
  int32_t state = automaton.StateOf(automaton.Start());
  for (const char byte : text) {
    state = automaton.Next(state, static_cast<unsigned char>(byte));
    if (state == Automaton::kDead) return false;
  }
  return automaton.MayEnd(state);
}

bool Accepts(const std::string& schema, const std::string& text) {
  const Result<Grammar> grammar = Compile(schema);
  EXPECT_TRUE(grammar.ok()) << schema;
  return grammar && Accepts(*grammar, text);
}

std::string ErrorOf(const std::string& schema) {
  const Result<Grammar> grammar = Compile(schema);
  return grammar ? "none" : grammar.error().message;
}

TEST(JsonSchema, ObjectsHaveTheirPropertiesInOrder) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
          "c": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false})";
  for (const char* text : {R"({"a": 1})", R"({"a":-20,"b":"x"})", R"({"a": 0, "c": true})",
                           "{\n  \"a\": 1,\n  \"b\": \"é\\n\\u00e9\",\n  \"c\": false\n}"}) {
    EXPECT_TRUE(Accepts(schema, text)) << text;
  }
  for (const char* text : {"{}", R"({"b": "x"})", R"({"a": 1,})", R"({"a": 01})", R"({"a": 1.5})",
                           R"({"a": 1, "d": 2})", R"({"a": 1, "a": 2})", R"({"a": 1} )",
                           R"({"a": 1, "b": "x)", "{\"a\": 1, \"b\": \"\x01\"}",
                           "{\"a\": 1, \"b\": \"\xff\"}", R"({"a": 1, "b": "\ud800"})"}) {
    EXPECT_FALSE(Accepts(schema, text)) << text;
  }
  EXPECT_TRUE(Accepts(R"({"type": "object", "properties": {"a": {}}})", "{}"));
  EXPECT_TRUE(Accepts(R"({"type": "object", "additionalProperties": false})", "{ }"));
  EXPECT_TRUE(Accepts(R"({"type": "object", "additionalProperties": {"type": "null"}})",
                      R"({"x": null, "y": null})"));
  EXPECT_TRUE(Accepts(R"({"type": "object"})", R"({"x": [1, {"y": "z"}], "w": -1.5e+10})"));
}

TEST(JsonSchema, OtherTypesAndAlternatives) {
  const std::string array = R"({"type": "array", "items": {"type": "number"}, "minItems": 2,
                                "maxItems": 3})";
  EXPECT_FALSE(Accepts(array, "[1]"));
  EXPECT_TRUE(Accepts(array, "[1, 2]"));
  EXPECT_TRUE(Accepts(array, "[1,2.5,3e2]"));
  EXPECT_FALSE(Accepts(array, "[1, 2, 3, 4]"));
  EXPECT_TRUE(Accepts(R"({"type": "array", "maxItems": 0})", "[]"));
  EXPECT_FALSE(Accepts(R"({"type": "array", "maxItems": 0})", "[1]"));
  EXPECT_TRUE(Accepts(R"({"type": "array", "items": {"type": "null"}})", "[null, null, null]"));
  EXPECT_TRUE(Accepts(R"({"type": "array", "minItems": 1})", R"(["a", {}])"));
  EXPECT_FALSE(Accepts(R"({"type": "array", "minItems": 1})", "[]"));
  EXPECT_TRUE(Accepts(R"({"enum": ["a\"b", 3, null, {"x": 1}]})", R"("a\"b")"));
  EXPECT_TRUE(Accepts(R"({"enum": ["a", 3], "type": "integer"})", "3"));
  EXPECT_FALSE(Accepts(R"({"enum": ["a", 3], "type": "integer"})", "\"a\""));
  EXPECT_TRUE(Accepts(R"({"const": true})", "true"));
  EXPECT_TRUE(Accepts(R"({"type": ["string", "null"]})", "null"));
  const std::string any = R"({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/p"}],
                              "$defs": {"p": {"properties": {"x": {"const": 1}},
                                              "required": ["x"]}}})";
  EXPECT_TRUE(Accepts(any, "\"s\""));
  EXPECT_TRUE(Accepts(any, R"({"x": 1})"));
  EXPECT_FALSE(Accepts(any, "2"));
  EXPECT_TRUE(Accepts(R"({"$ref": "#/$defs/a~1b~01", "$defs": {"a/b~1": {"const": 1}}})", "1"));
}

TEST(JsonSchema, WhatIsNotSupportedIsNamedWithItsPlace) {
  EXPECT_THAT(ErrorOf(R"({"type": "object", "properties": {"a": {"type": "string",
                         "pattern": "x"}}})"),
              HasSubstr("\"pattern\" at the top.a"));
  EXPECT_THAT(ErrorOf(R"({"type": "integer", "minimum": 1})"), HasSubstr("\"minimum\""));
  EXPECT_THAT(ErrorOf(R"({"oneOf": []})"), HasSubstr("\"oneOf\""));
  EXPECT_THAT(ErrorOf(R"({"anyOf": [{}], "type": "string"})"), HasSubstr("\"type\""));
  EXPECT_THAT(ErrorOf(R"({"type": "text"})"), HasSubstr("no type of JSON"));
  EXPECT_THAT(ErrorOf(R"({"type": "object", "required": ["x"]})"), HasSubstr("\"x\""));
  EXPECT_THAT(ErrorOf(R"({"enum": []})"), HasSubstr("no value"));
  EXPECT_THAT(ErrorOf(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})"),
              HasSubstr("itself"));
  EXPECT_THAT(ErrorOf(R"({"$ref": "http://x"})"), HasSubstr("$ref"));
  EXPECT_THAT(ErrorOf(R"({"type": "float"})"), HasSubstr(" has \"float\", which is no type"));
  EXPECT_THAT(ErrorOf("false"), HasSubstr("must be a schema"));
  EXPECT_THAT(ErrorOf(R"({"type": "array", "maxItems": 1, "minItems": 2})"), HasSubstr("below"));
}

TEST(JsonSchema, KeywordsOfATypeThatIsNotSaidAskForIt) {
  for (const char* keyword : {"items", "minItems", "maxItems"}) {
    EXPECT_EQ(
        ErrorOf(fmt::format(R"({{"{}": {{"type": "string"}}}})", keyword)),
        fmt::format(R"(the keyword "{}" at the top needs "type": "array" beside it)", keyword));
  }
  EXPECT_THAT(ErrorOf(R"({"additionalProperties": false})"),
              HasSubstr(R"("additionalProperties" at the top needs "type": "object")"));
  EXPECT_THAT(ErrorOf(R"({"required": ["a"]})"), HasSubstr(R"(needs "type": "object")"));
  EXPECT_THAT(ErrorOf(R"({"type": "string", "properties": {}})"),
              HasSubstr(R"(needs "type": "object")"));
  EXPECT_THAT(ErrorOf(R"({"properties": {}, "items": {}})"), HasSubstr(R"(needs "type": "array")"));
}

// [first, first + 1, ..., last]
std::string Numbers(int first, int last) {
  std::string numbers = fmt::format("[{}", first);
  for (int i = first + 1; i <= last; ++i) numbers += fmt::format(",{}", i);
  return numbers + "]";
}

TEST(JsonSchema, AnEnumerationHasAllItsValuesOrIsRefused) {
  constexpr int kMost = 65'536;
  const std::string all = fmt::format(R"({{"enum": {}}})", Numbers(1, kMost));
  EXPECT_TRUE(Accepts(all, "1"));
  EXPECT_TRUE(Accepts(all, "65535"));
  EXPECT_TRUE(Accepts(all, "65536"));
  EXPECT_FALSE(Accepts(all, "65537"));
  EXPECT_THAT(ErrorOf(fmt::format(R"({{"enum": {}}})", Numbers(0, kMost))),
              HasSubstr("has 65537 values, and at most 65536"));
  const auto any_of = [](int num_each) {
    return fmt::format(
        R"({{"anyOf": [{{"enum": {}}}, {{"type": "array", "items": {{"enum": {}}}}}]}})",
        Numbers(1, num_each), Numbers(num_each + 1, 2 * num_each));
  };
  EXPECT_TRUE(Accepts(any_of(30'000), "30000"));
  EXPECT_TRUE(Accepts(any_of(30'000), "[60000]"));
  EXPECT_THAT(ErrorOf(any_of(40'000)), HasSubstr("\"anyOf\" at the top have too many values"));
  std::string objects = R"({"type": "object", "properties": {"a": {}, "b": {}}})";
  for (int i = 1; i < 3000; ++i)
    objects += R"(, {"type": "object", "properties": {"a": {}, "b": {}}})";
  EXPECT_THAT(ErrorOf(fmt::format(R"({{"anyOf": [{}]}})", objects)), HasSubstr("65536 together"));
}

// Arrays in arrays, at each level one of two kinds that differ only in the end.
std::string TwoWaysAtEachLevel(int depth) {
  std::string definitions = R"("x0": {"enum": ["a", "b"]}, "y0": {"enum": ["a", "c"]})";
  for (int i = 1; i <= depth; ++i) {
    for (const char* name : {"x", "y"}) {
      definitions += fmt::format(
          R"(, "{}{}": {{"type": "array", "items": {{"anyOf": [{{"$ref": "#/$defs/x{}"}},
              {{"$ref": "#/$defs/y{}"}}]}}, "minItems": {}}})",
          name, i, i - 1, i - 1, name[0] == 'x' ? 1 : 2);
    }
  }
  return fmt::format(R"({{"$ref": "#/$defs/x{}", "$defs": {{{}}}}})", depth, definitions);
}

TEST(Automaton, AlternativesWithinAlternativesDoNotMultiply) {
  constexpr int kDepth = 20;  // two to the power of 20 ways to be in the middle
  const Result<Grammar> grammar = Compile(TwoWaysAtEachLevel(kDepth));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  EXPECT_LT(grammar->num_elements(), 5000u);
  const std::string open(kDepth, '[');
  const std::string close(kDepth, ']');
  EXPECT_TRUE(Accepts(*grammar, open + "\"b\"" + close));
  EXPECT_TRUE(Accepts(*grammar, open + "\"c\"" + close));
  EXPECT_FALSE(Accepts(*grammar, open + "\"d\"" + close));
  EXPECT_FALSE(Accepts(*grammar, open + close));
  EXPECT_FALSE(Accepts(*grammar, open + "\"b\"" + close.substr(1)));
  EXPECT_FALSE(Accepts(*grammar, open + "\"b\"" + close + "]"));
  Automaton automaton(*grammar);
  int32_t state = automaton.StateOf(automaton.Start());
  for (const char byte : open + "\"") {
    state = automaton.Next(state, static_cast<unsigned char>(byte));
    ASSERT_NE(state, Automaton::kDead);
  }
  EXPECT_LT(automaton.num_sets(), 500u);
}

TEST(Automaton, StatesOutliveTheirNumbers) {
  Automaton automaton(*Compile(TwoWaysAtEachLevel(3)));
  int32_t state = automaton.StateOf(automaton.Start());
  for (const char byte : std::string(R"([[["a",)")) {
    state = automaton.Next(state, static_cast<unsigned char>(byte));
  }
  const Stacks stacks = automaton.StacksOf(state);
  automaton.Forget();
  EXPECT_EQ(automaton.num_states(), 0);
  const int32_t again = automaton.StateOf(stacks);
  EXPECT_EQ(automaton.StacksOf(again), stacks);
  state = again;
  for (const char byte : std::string(R"("b"]]])")) {
    EXPECT_FALSE(automaton.MayEnd(state));
    state = automaton.Next(state, static_cast<unsigned char>(byte));
    ASSERT_NE(state, Automaton::kDead);
  }
  EXPECT_TRUE(automaton.MayEnd(state));
  EXPECT_FALSE(automaton.MayGoOn(state));
}

TEST(Grammar, TextUntilEndsWithTheFirstEnd) {
  Grammar grammar;
  const auto until = grammar.TextUntil("aab");
  grammar.SetRoot(until);
  EXPECT_TRUE(Accepts(grammar, "xaaab"));
  EXPECT_TRUE(Accepts(grammar, "aab"));
  EXPECT_FALSE(Accepts(grammar, "aabx"));
  EXPECT_FALSE(Accepts(grammar, "aa"));
  Grammar open;
  open.SetRoot(open.TextWithout("<f>"));
  EXPECT_TRUE(Accepts(open, "any <f"));
  EXPECT_TRUE(Accepts(open, "any <f<f >"));
  EXPECT_FALSE(Accepts(open, "any <f>"));
}

// A vocabulary with pieces of JSON, single bytes, and one token that ends a text.
std::shared_ptr<const TokenTrie> SmallVocabulary(std::vector<std::string>* texts) {
  for (const char* text : {"", "{\"", "\": ", "name", "\"}", "tr", "true", ", \"", "[[", "]]}"}) {
    texts->push_back(text);
  }
  for (int byte = 1; byte < 256; ++byte) texts->emplace_back(1, static_cast<char>(byte));
  std::vector<TokenBytes> tokens;
  for (size_t i = 0; i < texts->size(); ++i) {
    tokens.push_back({(*texts)[i], static_cast<int32_t>(i)});
  }
  return std::make_shared<TokenTrie>(tokens, static_cast<int32_t>(texts->size()) + 60);
}

bool IsAllowed(std::span<const uint64_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

// What the masks allow is what the automaton allows byte by byte, and whatever is drawn by them is
// JSON for which the schema holds.
TEST(TokenMatcher, AllowsExactlyTheTokensThatLeadOn) {
  std::vector<std::string> texts;
  const auto trie = SmallVocabulary(&texts);
  std::minstd_rand random(3);
  const std::string schemas[] = {
      R"({"type": "object", "properties": {"name": {"enum": ["tr", "x"]},
          "b": {"type": "boolean"}}, "required": ["name"]})",
      R"({"anyOf": [{"type": "array", "items": {"type": "integer"}, "maxItems": 4},
                    {"type": "null"}]})",
      R"({"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5})"};
  for (const std::string& schema : schemas) {
    const auto masks =
        std::make_shared<TokenMasks>(*Compile(schema), trie, std::vector<int32_t>{0});
    for (int round = 0; round < 40; ++round) {
      TokenMatcher matcher(masks);
      std::string text;
      while (!matcher.IsComplete()) {
        ASSERT_TRUE(matcher.AllowsAny()) << text;
        const auto mask = matcher.Allowed();
        std::vector<int32_t> allowed;
        for (int32_t token = 0; token < std::ssize(texts); ++token) {
          if (IsAllowed(mask, token)) allowed.push_back(token);
        }
        ASSERT_FALSE(allowed.empty()) << text;
        const int32_t token = allowed[random() % allowed.size()];
        if (token == 0) break;
        text += texts[static_cast<size_t>(token)];
        matcher.Advance(token);
      }
      ASSERT_TRUE(Accepts(schema, text)) << text;
      ASSERT_FALSE(ordered_json::parse(text, nullptr, false).is_discarded()) << text;
    }
  }
}

TEST(TokenMatcher, EndsWhereTheTextIsWholeAndSaysWhereNothingLeadsOn) {
  std::vector<std::string> texts;
  const auto trie = SmallVocabulary(&texts);
  TokenMatcher matcher(std::make_shared<TokenMasks>(*Compile(R"({"const": "true"})"), trie,
                                                    std::vector<int32_t>{0}));
  const auto id_of = [&](const std::string& text) {
    return static_cast<int32_t>(std::ranges::find(texts, text) - texts.begin());
  };
  EXPECT_FALSE(IsAllowed(matcher.Allowed(), 0));
  EXPECT_FALSE(IsAllowed(matcher.Allowed(), id_of("true")));
  matcher.Advance(id_of("\""));
  EXPECT_TRUE(IsAllowed(matcher.Allowed(), id_of("tr")));
  EXPECT_TRUE(IsAllowed(matcher.Allowed(), id_of("t")));
  matcher.Advance(id_of("true"));
  EXPECT_FALSE(matcher.IsComplete());
  matcher.Advance(id_of("\""));
  EXPECT_TRUE(matcher.IsComplete());

  const auto lacking = std::make_shared<TokenTrie>(std::vector<TokenBytes>{{"t", 1}}, 2);
  TokenMatcher stuck(std::make_shared<TokenMasks>(*Compile(R"({"const": true})"), lacking,
                                                  std::vector<int32_t>{0}));
  EXPECT_TRUE(stuck.AllowsAny());
  stuck.Advance(1);
  EXPECT_FALSE(stuck.AllowsAny());
}

}  // namespace
}  // namespace convene::grammar
