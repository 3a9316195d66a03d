#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/read_file.h"

namespace convene::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string FixtureJson(const std::string& name) {
  const auto contents = ReadFile(
      std::string(CONVENE_SOURCE_DIR) + "/tests/golden/tokenizers/" + name + "/tokenizer.json",
      1 << 20);
  EXPECT_TRUE(contents);
  return *contents;
}

Tokenizer LoadFixture(const std::string& name) {
  auto tokenizer = Tokenizer::FromJson(FixtureJson(name));
  EXPECT_TRUE(tokenizer);
  return *std::move(tokenizer);
}

// A tokenizer of three letters, to which tests add what they are about.
json TinyTokenizer() {
  return json::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 4},
                                   "merges": [["a", "b"]]}})");
}

// The message with which the tokenizer is refused.
std::string Refusal(const json& tokenizer_json, const std::string& config = "{}") {
  const auto tokenizer = Tokenizer::FromJson(tokenizer_json.dump(), config);
  if (!tokenizer) return tokenizer.error().message;
  ADD_FAILURE() << "accepted: " << tokenizer_json;
  return "";
}

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Tokenizer, KeepsSpecialTokensWholeUnlessToldNotTo) {
  const Tokenizer tokenizer = LoadFixture("qwen2");
  const auto start = tokenizer.IdOf("<|im_start|>");
  ASSERT_TRUE(start);
  const auto parsed = tokenizer.Encode("<|im_start|>");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, Ids{*start});
  EXPECT_TRUE(tokenizer.IsSpecial(*start));
  const auto plain = tokenizer.Encode("<|im_start|>", {.parse_special = false});
  ASSERT_TRUE(plain);
  EXPECT_GT(plain->size(), 3u);
  EXPECT_EQ(*tokenizer.Decode(*plain, true), "<|im_start|>");
  EXPECT_EQ(*tokenizer.Decode(*parsed, true), "");
  // Tokens that are added but not special stay tokens.
  const auto think = tokenizer.Encode("<think>", {.parse_special = false});
  ASSERT_TRUE(think);
  EXPECT_EQ(*think, Ids{*tokenizer.IdOf("<think>")});
}

TEST(Tokenizer, SaysWhereATextIsNotUtf8) {
  const Tokenizer tokenizer = LoadFixture("qwen2");
  const auto ids = tokenizer.Encode("caf\xc3\xa9 \xff and on");
  ASSERT_FALSE(ids);
  EXPECT_TRUE(Contains(ids.error().message, "0xff at offset 6")) << ids.error().message;
  EXPECT_FALSE(tokenizer.Encode("cut \xe6\x9d"));
}

TEST(Tokenizer, TellsIdsWithoutTokenFromTokens) {
  const auto tokenizer = Tokenizer::FromJson(TinyTokenizer().dump());
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  for (const int32_t id : {-1, 2, 3, 5, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->HasToken(id));
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_FALSE(tokenizer->TextOf(id));
    EXPECT_FALSE(tokenizer->BytesOf(id));
    const auto text = tokenizer->Decode(Ids{0, id}, false);
    ASSERT_FALSE(text);
    EXPECT_TRUE(Contains(text.error().message, std::to_string(id))) << text.error().message;
  }
  EXPECT_TRUE(tokenizer->HasToken(4));
  EXPECT_EQ(*tokenizer->TextOf(4), "ab");
}

TEST(Tokenizer, KnowsTheTokenThatEndsATextAndAddsItWhereItIsMissing) {
  const auto eos_of = [](const std::string& config) {
    const auto tokenizer = Tokenizer::FromJson(TinyTokenizer().dump(), config);
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return tokenizer->named_tokens().eos;
  };
  const auto known = eos_of(R"({"eos_token": {"content": "ab", "lstrip": false}})");
  EXPECT_EQ(known->text, "ab");
  EXPECT_EQ(known->id, 4);
  const auto added = eos_of(R"({"eos_token": "<e>"})");
  EXPECT_EQ(added->text, "<e>");
  EXPECT_EQ(added->id, 3) << "as the package counts: the first behind three tokens";
  EXPECT_FALSE(eos_of(R"({"eos_token": null})").has_value());
  EXPECT_FALSE(eos_of("{}").has_value());
}

TEST(Tokenizer, TakesManyTextsAtOnce) {
  const Tokenizer tokenizer = LoadFixture("deepseek");
  const std::string text = "Ten threads, 1234 words: 你好 and don't worry! ";
  const auto expected = tokenizer.Encode(text);
  ASSERT_TRUE(expected);
  std::vector<std::jthread> threads;
  std::vector<char> results(10, 0);
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const auto ids = tokenizer.Encode(text);
        if (!ids || *ids != *expected) return;
      }
      results[i] = 1;
    });
  }
  threads.clear();
  for (const char result : results) EXPECT_EQ(result, 1);
}

TEST(Tokenizer, TakesALongRunOfOneLetter) {
  for (const char* name : {"mixtral", "o200k", "metaspace_never"}) {
    const Tokenizer tokenizer = LoadFixture(name);
    for (const char* letter : {"a", " ", "\n", "é", "한", "\u0301"}) {
      std::string text;
      while (text.size() < (1 << 18)) text += letter;
      const auto ids = tokenizer.Encode(text, {.add_special_tokens = false});
      ASSERT_TRUE(ids) << name << " " << letter << ids.error().message;
      EXPECT_EQ(*tokenizer.Decode(*ids, false), text) << name << " " << letter;
    }
  }
}

TEST(Tokenizer, NamesTheComponentThatItDoesNotKnow) {
  const auto with = [](const char* field, const char* value) {
    json document = TinyTokenizer();
    document[field] = json::parse(value);
    return Refusal(document);
  };
  EXPECT_TRUE(Contains(with("normalizer", R"({"type": "Nmt"})"), "\"Nmt\""));
  EXPECT_TRUE(Contains(
      with("normalizer",
           R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "BertNormalizer"}]})"),
      "\"BertNormalizer\""));
  EXPECT_TRUE(
      Contains(with("pre_tokenizer", R"({"type": "UnicodeScripts"})"), "\"UnicodeScripts\""));
  EXPECT_TRUE(Contains(with("decoder", R"({"type": "WordPiece"})"), "\"WordPiece\""));
  EXPECT_TRUE(
      Contains(with("post_processor", R"({"type": "BertProcessing"})"), "\"BertProcessing\""));
  EXPECT_TRUE(Contains(
      with(
          "pre_tokenizer",
          R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Shaken", "invert": false})"),
      "\"Shaken\""));

  json document = TinyTokenizer();
  document["model"]["type"] = "WordLevel";
  EXPECT_TRUE(Contains(Refusal(document), "\"WordLevel\""));
}

TEST(Tokenizer, RefusesMalformedFields) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"/version", R"("2.0")"},
      {"/model", "3"},
      {"/model/vocab", "[]"},
      {"/model/vocab", R"({"a": -1})"},
      {"/model/vocab", R"({"a": 4294967295})"},
      {"/model/vocab", R"({"a": 0.5})"},
      {"/model/vocab", R"({"a": 0, "b": 0})"},
      {"/model/merges", "{}"},
      {"/model/merges", R"(["ab"])"},
      {"/model/merges", R"(["a b b"])"},
      {"/model/merges", R"([["a"]])"},
      {"/model/merges", R"([["a", "z"]])"},
      {"/model/dropout", "0.1"},
      {"/model/unk_token", "7"},
      {"/model/fuse_unk", R"("yes")"},
      {"/added_tokens", R"({"a": 1})"},
      {"/added_tokens", R"([{"id": 3}])"},
      {"/added_tokens", R"([{"content": 3}])"},
      {"/added_tokens", R"([{"content": "t"}])"},
      {"/added_tokens", R"([{"id": -1, "content": "t"}])"},
      {"/added_tokens", R"([{"id": 1099511627776, "content": "t"}])"},
      {"/added_tokens", R"([{"id": 1.5, "content": "t"}])"},
      {"/added_tokens", R"([{"id": "x", "content": "t"}])"},
      {"/added_tokens", R"([{"id": 3, "content": ""}])"},
      {"/normalizer", "[]"},
      {"/normalizer", R"({"kind": "NFC"})"},
      {"/normalizer", R"({"type": "Strip"})"},
      {"/normalizer", R"({"type": "Sequence"})"},
      {"/normalizer", R"({"type": "Replace", "content": "x"})"},
      {"/normalizer", R"({"type": "Replace", "content": "x", "pattern": {"Regex": "("}})"},
      {"/normalizer", R"({"type": "Replace", "content": "x", "pattern": {"Glob": "*"}})"},
      {"/pre_tokenizer", R"({"type": "Digits"})"},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})"},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": ""})"},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false})"},
      {"/decoder", R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": [], "special_tokens": {}})"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "special_tokens": {},
           "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [-1]}},
           "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "special_tokens": {}, "single": [{"Sequence": {"id": "B"}}]})"},
  };
  for (const auto& [where, value] : cases) {
    json document = TinyTokenizer();
    document[json::json_pointer(where)] = json::parse(value);
    EXPECT_NE(Refusal(document), "");
  }
  EXPECT_TRUE(Contains(Refusal(TinyTokenizer(), "{\"bos_token\": 3}"), "bos_token"));
  EXPECT_TRUE(Contains(Refusal(TinyTokenizer(), "nothing"), "tokenizer_config.json"));
  EXPECT_TRUE(Contains(Refusal(TinyTokenizer(), ""), "tokenizer_config.json"));
}

// Steps may be expensive to make: the one behind too many is not even looked at.
TEST(Tokenizer, RefusesTooManyStepsBeforeItMakesThemAll) {
  std::string ranges;
  for (int c = 0x4e00; c < 0x5e00; c += 4)
    ranges += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", c, c + 1);
  struct Kind {
    const char* field;
    const char* steps;
    json step;
  };
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "[" + ranges + "]+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  for (const Kind& kind : {Kind{"normalizer", "normalizers", {{"type", "Lowercase"}}},
                           Kind{"pre_tokenizer", "pretokenizers", split},
                           Kind{"decoder", "decoders", {{"type", "Fuse"}}}}) {
    json steps(65, kind.step);
    steps.push_back({{"type", "None such"}});
    json document = TinyTokenizer();
    document[kind.field] = {{"type", "Sequence"}, {kind.steps, steps}};
    const std::string refusal = Refusal(document);
    EXPECT_TRUE(Contains(refusal, "more than 64 steps")) << refusal;
  }
}
TEST(Tokenizer, RefusesAnAddedTokenThatIsTooLong) {
  json document = TinyTokenizer();
  document["added_tokens"] = {{{"id", 3}, {"content", std::string(kMaxAddedTokenBytes + 1, 'x')}}};
  EXPECT_TRUE(Contains(Refusal(document), "1025 bytes"));
}

TEST(Tokenizer, ReadsNoHalfOfAFile) {
  const std::string whole = FixtureJson("added");
  for (size_t size = 0; size < whole.find_last_of('}'); size += 37) {
    EXPECT_FALSE(Tokenizer::FromJson(whole.substr(0, size))) << size;
  }
  EXPECT_FALSE(Tokenizer::FromJson(std::string(100'000, '[')));
}

TEST(Tokenizer, SaysThatADirectoryHoldsNone) {
  const auto tokenizer = Tokenizer::Load("/nonexistent/model");
  ASSERT_FALSE(tokenizer);
  EXPECT_TRUE(Contains(tokenizer.error().message, "/nonexistent/model"));
  EXPECT_TRUE(Contains(tokenizer.error().message, "tokenizer.json"));
}

TEST(Tokenizer, GivesUpOnATextForWhichItsPatternExplodes) {
  json document = TinyTokenizer();
  document["pre_tokenizer"] = json::parse(
      R"({"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": false})");
  const auto tokenizer = Tokenizer::FromJson(document.dump());
  ASSERT_TRUE(tokenizer);
  EXPECT_TRUE(tokenizer->Encode("aa"));
  const auto ids = tokenizer->Encode(std::string(100, 'a') + "b");
  ASSERT_FALSE(ids);
  EXPECT_TRUE(Contains(ids.error().message, "(a|aa)+$")) << ids.error().message;
}

}  // namespace
}  // namespace convene::text
