#include "openai/answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// Four tokens are the bytes of two characters, e with an acute accent and a face; two ids spell
// "ok".
text::Tokenizer ByteTokenizer() {
  auto tokenizer = text::Tokenizer::FromJson(R"({"decoder": {"type": "ByteFallback"}, "model":
      {"type": "BPE", "byte_fallback": true, "merges": [], "vocab": {"<0xC3>": 0, "<0xA9>": 1,
       "<0xF0>": 2, "<0x9F>": 3, "<0x98>": 4, "<0x80>": 5, "a": 6, "<0x61>": 7, "b": 8}},
      "added_tokens": [{"id": 9, "content": "</s>", "special": true}]})");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

ordered_json LogprobsOf(const std::vector<engine::GeneratedToken>& tokens) {
  GenerationBody request;
  request.request.num_logprobs = 2;
  Answer answer;
  answer.tokens = tokens;
  return AnswerBody(ByteTokenizer(), request, std::span(&answer, 1), {})["choices"][0]["logprobs"];
}

TEST(Answer, OffsetsOfACompletionCountCharacters) {
  std::vector<engine::GeneratedToken> tokens;
  for (const int32_t token : {6, 0, 1, 8, 2, 3, 4, 5, 0, 6}) tokens.push_back({.token = token});
  // a, e with accent in two tokens, b, a face in four, half a character, a.
  EXPECT_EQ(LogprobsOf(tokens)["text_offset"], (ordered_json{0, 1, 1, 2, 3, 3, 3, 3, 4, 4}));
}

TEST(Answer, TokensThatTheTextLeavesOutTakeNoPlaceInIt) {
  GenerationBody request;
  request.request.num_logprobs = 0;
  Answer answer;
  for (const int32_t token : {6, 9, 8, 9, 6}) answer.tokens.push_back({.token = token});
  const auto offsets = [&] {
    return AnswerBody(ByteTokenizer(), request, std::span(&answer, 1),
                      {})["choices"][0]["logprobs"]["text_offset"];
  };
  EXPECT_EQ(offsets(), (ordered_json{0, 1, 1, 2, 2}));
  request.request.shown_tokens = {9};
  EXPECT_EQ(offsets(), (ordered_json{0, 1, 5, 6, 10}));
}

TEST(Answer, TheTextOfABodyIsThatOfItsJson) {
  const text::Tokenizer tokenizer = ByteTokenizer();
  for (const bool is_chat : {false, true}) {
    for (const std::optional<int> num_logprobs : {std::optional<int>(), std::optional<int>(2)}) {
      GenerationBody request;
      request.is_chat = is_chat;
      request.num_answers = 3;
      request.request.num_logprobs = num_logprobs;
      std::vector<Answer> answers(3);
      answers[0].finish = engine::FinishReason::kStop;  // without tokens
      answers[1].text = "a\"b";
      answers[1].calls = {{"c", "f", "{}"}};
      for (int i = 0; i < 100; ++i) {
        answers[1].tokens.push_back(
            {.token = i % 10, .logprob = -0.5 * i, .top = {{.token = 6, .logprob = -1.0 / 3}}});
      }
      answers[2].finish = engine::FinishReason::kLength;
      const AnswerHead head = {.id = "x", .created = 7, .model = "m", .fingerprint = "fp"};
      std::vector<LogprobsText> logprobs(3);
      for (size_t i = 0; i < answers.size(); ++i) {
        std::span<const engine::GeneratedToken> tokens = answers[i].tokens;
        for (size_t count = 0; !tokens.empty(); ++count) {  // none, one, two, ...
          const size_t some = std::min(count, tokens.size());
          logprobs[i].Add(tokenizer, request, tokens.first(some));
          tokens = tokens.subspan(some);
        }
      }
      EXPECT_EQ(AnswerText(tokenizer, request, answers, logprobs, head),
                AnswerBody(tokenizer, request, answers, head)
                    .dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    }
  }
}

TEST(Answer, TokensThatAreNoTextAreSpelledAsTheirBytes) {
  const ordered_json logprobs =
      LogprobsOf({{.token = 2,
                   .logprob = -1,
                   .top = {{.token = 2, .logprob = -1}, {.token = 3, .logprob = -2}}}});
  EXPECT_EQ(logprobs["tokens"], ordered_json({"bytes:\\xf0"}));
  EXPECT_EQ(logprobs["top_logprobs"][0],
            (ordered_json{{"bytes:\\xf0", -1.0}, {"bytes:\\x9f", -2.0}}));
}

TEST(Answer, TopLogprobsOfACompletionHaveTheDrawnTokenAndEachTextOnce) {
  const ordered_json logprobs =
      LogprobsOf({{.token = 8,
                   .logprob = -9,
                   .top = {{.token = 6, .logprob = -1}, {.token = 7, .logprob = -2}}}});
  EXPECT_EQ(logprobs["top_logprobs"][0], (ordered_json{{"a", -1.0}, {"b", -9.0}}));
}

TEST(Answer, ChunksBesideOneWithTheUsageHaveNone) {
  GenerationBody request;
  request.is_chat = true;
  request.streams = true;
  EXPECT_FALSE(RoleChunk(request, {}, 0).contains("usage"));
  EXPECT_FALSE(FinishChunk(request, {}, 0, {}).contains("usage"));
  request.streams_usage = true;
  EXPECT_TRUE(RoleChunk(request, {}, 0)["usage"].is_null());
  EXPECT_TRUE(FinishChunk(request, {}, 0, {}).at("usage").is_null());
  EXPECT_TRUE(UsageChunk(request, {}, {})["usage"].is_object());
}

}  // namespace
}  // namespace convene::openai
