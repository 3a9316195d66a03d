#include "openai/token_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

constexpr const char* kTools = R"("tools": [{"type": "function", "function": {"name": "a"}}])";

class TokenRequests : public ::testing::Test {
 protected:
  // "TOKENS" such as "[0,1]", or "FIELD: MESSAGE".
  std::string Tokenize(const std::string& fields, const char* source) {
    const auto chat_template = text::ChatTemplate::Parse(source);
    EXPECT_TRUE(chat_template.ok());
    const auto body = ParseOrderedJson("{" + fields + "}");
    EXPECT_TRUE(body.ok()) << fields;
    const auto answer = AnswerTokenize(*body, *tokenizer_, chat_template, 100);
    if (const auto* wrong = std::get_if<FieldError>(&answer)) {
      return wrong->field + ": " + wrong->error.message;
    }
    return std::get<ordered_json>(answer)["tokens"].dump();
  }

  static constexpr const char* kPlain = "{% for m in messages %}{{ m.content }}{% endfor %}";
  static constexpr const char* kWithTools =
      "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}b{% endif "
      "%}";
  Result<text::Tokenizer> tokenizer_ = text::Tokenizer::FromJson(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
};

TEST_F(TokenRequests, TakeAPromptOrMessages) {
  EXPECT_EQ(Tokenize(R"("prompt": "ab")", kPlain), "[0,1]");
  EXPECT_EQ(Tokenize(R"("messages": [{"role": "user", "content": "b"}], "prompt": null)", kPlain),
            "[1]");
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}], )";
  EXPECT_EQ(Tokenize(messages + kTools, kWithTools), "[0,0,1]");
  EXPECT_EQ(Tokenize(messages + R"("add_generation_prompt": false)", kWithTools), "[0]");
}

TEST_F(TokenRequests, TakeTheVariablesOfATemplate) {
  const std::string thinking =
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}b{% endif %}";
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}], )";
  const auto with = [](const std::string& variables) {
    return R"("chat_template_kwargs": )" + variables;
  };
  EXPECT_EQ(Tokenize(messages + with(R"({"enable_thinking": true})"), thinking.c_str()), "[0,1]");
  EXPECT_EQ(Tokenize(messages + with(R"({"enable_thinking": false})"), thinking.c_str()), "[0]");
  EXPECT_THAT(Tokenize(messages + with(R"({"zork": 1})"), thinking.c_str()),
              HasSubstr("chat_template_kwargs: "));
  EXPECT_THAT(Tokenize(messages + with(R"({"messages": []})"), thinking.c_str()),
              HasSubstr("chat_template_kwargs: "));
  EXPECT_THAT(Tokenize(messages + with("3"), thinking.c_str()),
              HasSubstr("chat_template_kwargs: "));
}

TEST_F(TokenRequests, RefuseWhatAChatRefuses) {
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}], )";
  EXPECT_THAT(Tokenize(messages + kTools, kPlain), HasSubstr("tools: tools cannot be given"));
  EXPECT_THAT(Tokenize(messages + R"("tools": [{"name": "a"}])", kWithTools),
              HasSubstr("tools: tools must have"));
  EXPECT_THAT(Tokenize(R"("messages": [{"role": "king", "content": "a"}])",
                       "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"),
              HasSubstr("messages: messages[0] has the role"));
}

TEST_F(TokenRequests, RefuseWhatSaysNothingOfAPrompt) {
  EXPECT_THAT(Tokenize(std::string(R"("prompt": "a", )") + kTools, kWithTools),
              HasSubstr("tools: tools goes with messages"));
  EXPECT_THAT(Tokenize(R"("prompt": "a", "add_generation_prompt": true)", kWithTools),
              HasSubstr("add_generation_prompt: "));
  EXPECT_THAT(Tokenize(R"("prompt": "a", "messages": [])", kPlain), HasSubstr("not both"));
  EXPECT_THAT(Tokenize("", kPlain), HasSubstr("prompt: prompt must be a string"));
  EXPECT_THAT(Tokenize(R"("prompt": 3)", kPlain), HasSubstr("prompt: prompt must be a string"));
}

}  // namespace
}  // namespace convene::openai
