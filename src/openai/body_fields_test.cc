#include "openai/body_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace convene::openai {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Complaint(const std::string& body, bool is_chat = true,
                      BodyOrigin origin = BodyOrigin::kBatchLine) {
  const FieldStatus wrong = CheckFields(nlohmann::ordered_json::parse(body), is_chat, origin);
  return wrong ? wrong->error.message : "";
}

TEST(BodyFields, WhatIsSupportedOrSaysNothingAboutTheAnswerPasses) {
  EXPECT_EQ(Complaint(R"({"model": "m", "messages": [], "max_completion_tokens": 3, "seed": 1,
                          "top_logprobs": 2, "user": "u", "metadata": {"a": "b"}, "store": false,
                          "service_tier": "auto", "guided_json": null, "stop": null})"),
            "");
  EXPECT_EQ(Complaint(R"({"prompt": "x", "max_tokens": 3, "top_k": 1})", false), "");
  EXPECT_EQ(Complaint("{}"), "");
}

TEST(BodyFields, NothingIsSwallowed) {
  for (const std::string wrong :
       {R"("user": 5)", R"("metadata": 5)", R"("service_tier": 5)", R"("service_tier": "priority")",
        R"("store": true)", R"("store": "x")", R"("cache_salt": "a")", R"("zork": null)"}) {
    const std::string name = wrong.substr(1, wrong.find('"', 1) - 1);
    EXPECT_THAT(Complaint("{" + wrong + "}"), StartsWith("body." + name + " ")) << wrong;
  }
}

TEST(BodyFields, WhatWouldChangeTheAnswerIsRefusedByItsName) {
  for (const std::string name :
       {"guided_json", "guided_regex", "verbosity", "structured_outputs", "thinking", "mirostat",
        "typical_p", "prediction", "audio", "truncate_prompt_tokens"}) {
    EXPECT_THAT(Complaint(R"({")" + name + R"(": 1})"), StartsWith("body." + name + " is not"));
  }
}

TEST(BodyFields, KnownFieldsPassOnlyWithTheValueThatChangesNothing) {
  for (const std::string neutral :
       {R"("n": 1)", R"("best_of": 1)", R"("stream": false)", R"("echo": false)", R"("suffix": "")",
        R"("response_format": {"type": "text"})", R"("min_tokens": 0)",
        R"("skip_special_tokens": true)", R"("logit_bias": null)"}) {
    EXPECT_EQ(Complaint("{" + neutral + "}"), "");
  }
  for (const std::string other :
       {R"("n": 2)", R"("n": "1")", R"("best_of": 3)", R"("stream": true)", R"("echo": true)",
        R"("suffix": "x")", R"("response_format": {"type": "json_object"})",
        R"("response_format": "text")", R"("min_tokens": 5)", R"("parallel_tool_calls": false)"}) {
    EXPECT_THAT(Complaint("{" + other + "}"), HasSubstr("must be absent or")) << other;
  }
  EXPECT_THAT(Complaint(R"({"n": 2})"), HasSubstr("repeat the line"));
}

TEST(BodyFields, AServerStreamsAndAnswersSeveralTimes) {
  const auto complaint = [](const std::string& body) {
    return Complaint(body, true, BodyOrigin::kServer);
  };
  EXPECT_EQ(complaint(R"({"n": 2, "stream": true, "stream_options": {}})"), "");
  EXPECT_THAT(complaint(R"({"best_of": 3})"), StartsWith("best_of is not supported"));
  EXPECT_THAT(complaint(R"({"guided_json": {}})"), StartsWith("guided_json is not supported"));
  EXPECT_EQ(complaint(R"({"reasoning_effort": "low"})"), "");
  const FieldStatus wrong = CheckFields({{"n", 1}, {"audio", 1}}, true, BodyOrigin::kServer);
  EXPECT_EQ(wrong->field, "audio");
}

TEST(BodyFields, MistypedNamesGetASuggestion) {
  EXPECT_THAT(Complaint(R"({"max_token": 5})"), HasSubstr("did you mean max_tokens?"));
  EXPECT_THAT(Complaint(R"({"temprature": 1})"), HasSubstr("did you mean temperature?"));
  EXPECT_THAT(Complaint(R"({"mesages": []})"), HasSubstr("did you mean messages?"));
}

TEST(BodyFields, FieldsOfTheOtherUrlAreRefused) {
  EXPECT_THAT(Complaint(R"({"prompt": "x"})"), HasSubstr(kCompletionsUrl));
  EXPECT_THAT(Complaint(R"({"messages": []})", false), HasSubstr(kChatUrl));
  EXPECT_THAT(Complaint(R"({"tools": []})", false), HasSubstr(kChatUrl));
}

// A name may hold anything.
TEST(BodyFields, NamesAreHarmlessInMessages) {
  EXPECT_EQ(Complaint("{\"\\u001b[2J\": 1}").find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace convene::openai
