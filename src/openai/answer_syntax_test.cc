#include "openai/answer_syntax.h"

#include <gtest/gtest.h>

#include <string>

namespace convene::openai {
namespace {

text::Tokenizer SmallTokenizer(const std::string& added) {
  auto tokenizer = text::Tokenizer::FromJson(R"({"added_tokens": [)" + added + R"(],
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  EXPECT_TRUE(tokenizer.ok());
  return *std::move(tokenizer);
}

AnswerSyntax SyntaxOf(const std::string& source) {
  const auto parsed = text::ChatTemplate::Parse(source);
  EXPECT_TRUE(parsed.ok());
  return openai::SyntaxOf(*parsed, SmallTokenizer(""));
}

TEST(AnswerSyntax, IsKnownByTheWordsOfTheTemplate) {
  EXPECT_EQ(SyntaxOf("{{ '<tool_call>\\n{\"name\": ' }}").calls, CallForm::kObjects);
  EXPECT_EQ(SyntaxOf("{{ '<tool_call>\\n<function=' }}").key_begin, "<parameter=");
  EXPECT_EQ(SyntaxOf("<tool_call>{{ name }}<arg_key>").calls, CallForm::kParameters);
  EXPECT_EQ(SyntaxOf("{{ '[TOOL_CALLS][' }}").section_begin, "[TOOL_CALLS]");
  EXPECT_EQ(SyntaxOf("{{ '<|channel|>final' }}").calls, CallForm::kChannels);
  const AnswerSyntax named = SyntaxOf("{{ '<｜tool▁call▁begin｜>function\\n```json' }}</think>");
  EXPECT_EQ(named.calls, CallForm::kNamed);
  EXPECT_TRUE(named.has_fences);
  EXPECT_TRUE(named.thinks());
  EXPECT_EQ(SyntaxOf("{{ messages }}").Markers().size(), 0u);
}

TEST(AnswerSyntax, ReasoningIsKnownByTheTokensToo) {
  const auto plain = text::ChatTemplate::Parse("{{ messages }}");
  const auto tokenizer = SmallTokenizer(R"({"id": 2, "content": "<think>", "special": false},
                                           {"id": 3, "content": "</think>", "special": false})");
  const AnswerSyntax syntax = openai::SyntaxOf(*plain, tokenizer);
  EXPECT_TRUE(syntax.thinks());
  EXPECT_TRUE(BeginsReasoning(syntax, "<|Assistant|><think>\n"));
  EXPECT_FALSE(BeginsReasoning(syntax, "<think>\n\n</think>\n\n"));
  EXPECT_FALSE(BeginsReasoning(syntax, ""));
  EXPECT_FALSE(BeginsReasoning({}, "<think>"));
}

}  // namespace
}  // namespace convene::openai
