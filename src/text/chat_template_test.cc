#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace convene::text {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

const ordered_json kHello = ordered_json::parse(R"([{"role": "user", "content": "Hello"}])");

// The text, or the error's message after "error: ".
std::string Render(std::string_view source, const ordered_json& messages = kHello,
                   const RenderOptions& options = {}) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template) return "error: " + chat_template.error().message;
  const auto text = chat_template->Render(messages, options);
  return text ? *text : "error: " + text.error().message;
}

class ChatTemplateDirectory : public testing::Test {
 protected:
  ChatTemplateDirectory()
      : path_(testing::TempDir() + "/" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_ + "/additional_chat_templates");
  }
  ~ChatTemplateDirectory() override { std::filesystem::remove_all(path_); }

  void Write(const std::string& name, std::string_view contents) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << contents;
  }
  std::string LoadAndRender(const RenderOptions& options = {}) const {
    const auto chat_template = ChatTemplate::Load(path_);
    if (!chat_template) return "error: " + chat_template.error().message;
    const auto text = chat_template->Render(kHello, options);
    return text ? *text : "error: " + text.error().message;
  }

  const std::string path_;
};

TEST_F(ChatTemplateDirectory, HoldsTheTemplateInAFileOfItsOwn) {
  Write("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}\n");
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "not this"})");
  EXPECT_EQ(LoadAndRender(), "<s>Hello");
}

TEST_F(ChatTemplateDirectory, HoldsTheTemplateInTheConfiguration) {
  Write(
      "tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ x_token }}",
            "bos_token": {"__type": "AddedToken", "content": "<b>", "lstrip": false},
            "eos_token": "<e>", "pad_token": null, "x_token": "<x>", "add_bos_token": true})");
  EXPECT_EQ(LoadAndRender(), "<b>|<e>|False|<x>");
}

TEST_F(ChatTemplateDirectory, MayHoldSeveralTemplatesOfWhichOneIsForTools) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "rag", "template": "{% unknown %}"},
                              {"name": "tool_use", "template": "{{ tools|length }} tools"}]})");
  EXPECT_EQ(LoadAndRender(), "plain");
  RenderOptions options;
  options.tools = ordered_json::array();
  EXPECT_EQ(LoadAndRender(options), "0 tools");
  Write("chat_template.jinja", "file");
  EXPECT_EQ(LoadAndRender(options), "file");
  Write("additional_chat_templates/tool_use.jinja", "{{ bos_token }} for tools");
  Write("special_tokens_map.json", R"({"bos_token": {"content": "<m>"}})");
  EXPECT_EQ(LoadAndRender(options), "<m> for tools");
}

TEST_F(ChatTemplateDirectory, ReadsTheOlderTokenFileOnlyWithoutAddedTokens) {
  Write("chat_template.jinja", "{{ bos_token }}");
  Write("special_tokens_map.json", R"({"bos_token": "<map>"})");
  Write("tokenizer_config.json", R"({"bos_token": "<config>"})");
  EXPECT_EQ(LoadAndRender(), "<map>");
  Write("tokenizer_config.json", R"({"bos_token": "<config>", "added_tokens_decoder": {}})");
  EXPECT_EQ(LoadAndRender(), "<config>");
}

TEST_F(ChatTemplateDirectory, SaysWhatIsMissingOrBroken) {
  EXPECT_THAT(LoadAndRender(), HasSubstr("holds no chat template"));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(LoadAndRender(), HasSubstr("no chat template named \"default\""));
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(LoadAndRender(), HasSubstr("chat_template must be a string or a list, not number"));
  Write("tokenizer_config.json", R"({"chat_template": [5]})");
  EXPECT_THAT(LoadAndRender(), HasSubstr("must have the strings"));
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(LoadAndRender(), HasSubstr("tokenizer_config.json"));
  Write("tokenizer_config.json", "[]");
  EXPECT_THAT(LoadAndRender(), HasSubstr("must be a JSON object"));
  Write("tokenizer_config.json", "{}");
  Write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(LoadAndRender(), HasSubstr("chat template, line 1"));
  Write("chat_template.jinja", "\xff");
  EXPECT_THAT(LoadAndRender(), HasSubstr("UTF-8"));
}

TEST(ChatTemplate, DropsKeysThatAreNull) {
  const auto messages = ordered_json::parse(
      R"([{"role": "assistant", "content": null, "tool_calls": null, "deep": {"kept": null}}])");
  EXPECT_EQ(Render("{{ messages }}", messages), "[{'role': 'assistant', 'deep': {'kept': None}}]");
}

TEST(ChatTemplate, GivesReasoningUnderTheNamesThatTemplatesRead) {
  const auto render = [](const char* message) {
    return Render("{{ messages[0] }}", ordered_json::array({ordered_json::parse(message)}));
  };
  EXPECT_EQ(render(R"({"role": "a", "reasoning": "r"})"),
            "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}");
  EXPECT_EQ(render(R"({"thinking": "t", "reasoning_content": "r"})"),
            "{'thinking': 't', 'reasoning_content': 'r'}");
  EXPECT_EQ(render(R"({"reasoning_content": null, "thinking": "t"})"),
            "{'thinking': 't', 'reasoning_content': 't'}");
}

TEST(ChatTemplate, PassesVariablesAndTheStandardOnes) {
  RenderOptions options;
  options.add_generation_prompt = true;
  options.variables = ordered_json::parse(R"({"enable_thinking": false, "n": 3})");
  EXPECT_EQ(Render("{{ enable_thinking }} {{ n + 1 }} {{ add_generation_prompt }} {{ tools }} "
                   "{{ documents is none }}",
                   kHello, options),
            "False 4 True None True");
}

TEST(ChatTemplate, LetsVariablesReplaceSpecialTokensButNotTheConversation) {
  const auto chat_template = ChatTemplate::Parse("{{ bos_token }}", {{"bos_token", "<s>"}});
  ASSERT_TRUE(chat_template);
  RenderOptions options;
  EXPECT_EQ(*chat_template->Render(kHello, options), "<s>");
  options.variables = {{"bos_token", "<mine>"}};
  EXPECT_EQ(*chat_template->Render(kHello, options), "<mine>");
  options.variables = {{"messages", 5}};
  EXPECT_THAT(Render("", kHello, options), HasSubstr("\"messages\" cannot be given"));
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  EXPECT_THAT(Render("", ordered_json::array()), HasSubstr("empty"));
  EXPECT_THAT(Render("", "text"), HasSubstr("messages must be a JSON array, not string"));
  EXPECT_THAT(Render("", {1, 2}), HasSubstr("messages[0] must be a JSON object, not number"));
  RenderOptions options;
  options.tools = ordered_json::array({"x"});
  EXPECT_THAT(Render("", kHello, options), HasSubstr("tools[0] must be a JSON object"));
  options.tools = nullptr;
  options.variables = 5;
  EXPECT_THAT(Render("", kHello, options), HasSubstr("must be a JSON object, not number"));
}

TEST(ChatTemplate, RefusesValuesThatItCannotHold) {
  auto messages = kHello;
  messages[0]["content"] = uint64_t{1} << 63;
  EXPECT_THAT(Render("", messages), HasSubstr("9223372036854775808 is too large"));
  messages[0]["content"] = "\xc3";
  EXPECT_THAT(Render("", messages), HasSubstr("UTF-8"));
  ordered_json nested = 1;
  for (int i = 0; i < 300; ++i) nested = ordered_json::array({std::move(nested)});
  messages[0]["content"] = std::move(nested);
  EXPECT_THAT(Render("", messages), HasSubstr("nested deeper"));
}

TEST(ChatTemplate, RepeatsTheWordsOfARefusalWithTheLine) {
  EXPECT_EQ(Render("a\n{{ raise_exception('Only \"users\" may speak!') }}"),
            "error: chat template, line 2: Only \"users\" may speak!");
}

TEST(ChatTemplate, PrintsTheTimeItIsGiven) {
  RenderOptions options;
  options.now = std::chrono::system_clock::from_time_t(86400 * 365);
  EXPECT_THAT(Render("{{ strftime_now('%Y') }}", kHello, options), testing::AnyOf("1970", "1971"));
}

TEST(ChatTemplate, CopiesRenderTheSame) {
  auto original = ChatTemplate::Parse("{{ messages[0].content }}");
  ASSERT_TRUE(original);
  const ChatTemplate copy = *original;
  original = ChatTemplate::Parse("other");
  EXPECT_EQ(*copy.Render(kHello), "Hello");
}

}  // namespace
}  // namespace convene::text
