#include "openai/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace convene::openai {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

// Two parts, then a plain text.
const ordered_json kParts = ordered_json::parse(R"([
    {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
    {"role": "user", "content": "Hello"}])");

// Arguments as OpenAI's API sends them.
const ordered_json kCalls = ordered_json::parse(R"([{"role": "assistant", "tool_calls": [
    {"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": [\"x\"]}"}},
    {"type": "function", "function": {"name": "g", "arguments": ""}},
    {"type": "function", "function": {"name": "h", "arguments": "{broken"}},
    {"type": "function", "function": {"name": "i", "arguments": "3"}}]}])");

// The text, or the error's message after "error: ".
std::string Render(std::string_view source, const ordered_json& messages) {
  const auto chat_template = text::ChatTemplate::Parse(source);
  if (!chat_template) return "error: " + chat_template.error().message;
  const auto text = RenderMessages(*chat_template, messages, {});
  return text ? *text : "error: " + text.error().message;
}

TEST(OpenAiMessages, PartsAreJoinedForATemplateThatReadsText) {
  EXPECT_EQ(Render("{% for m in messages %}[{{ m.content }}]{% endfor %}", kParts),
            "[Be\nbrief][Hello]");
  EXPECT_EQ(Render("{% for m in messages %}{{ '[' + m.content | trim + ']' }}{% endfor %}", kParts),
            "[Be\nbrief][Hello]");
  EXPECT_EQ(Render("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", kParts),
            R"("Be\nbrief""Hello")");
}

TEST(OpenAiMessages, PartsGoToATemplateThatReadsThem) {
  EXPECT_EQ(
      Render("{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}"
             "{% for part in m.content %}{{ part.text }};{% endfor %}{% endif %}]{% endfor %}",
             kParts),
      "[Be;brief;][Hello]");
}

TEST(OpenAiMessages, PartsGoToATemplateThatReadsNothingElse) {
  const ordered_json messages = ordered_json::array({kParts[0]});
  EXPECT_EQ(Render("{% for m in messages %}{% for part in m.content %}<{{ part.text }}>"
                   "{% endfor %}{% endfor %}",
                   messages),
            "<Be><brief>");
  EXPECT_EQ(Render("{% for m in messages %}{{ m.content[0]['text'] + '.' }}{% endfor %}", messages),
            "Be.");
}

TEST(OpenAiMessages, APartThatIsNoTextIsRefusedByItsType) {
  const auto with = [](const char* part) {
    ordered_json messages = kParts;
    messages[0]["content"][1] = ordered_json::parse(part);
    return Render("{{ messages[0].content }}", messages);
  };
  EXPECT_THAT(with(R"({"type": "image_url", "image_url": {"url": "x"}})"),
              HasSubstr("messages[0].content[1] is a part of type \"image_url\"; only text"));
  EXPECT_THAT(with(R"({"text": "x"})"), HasSubstr("without type"));
  EXPECT_THAT(with(R"("x")"), HasSubstr("without type"));
  EXPECT_THAT(with(R"({"type": "text", "text": 3})"), HasSubstr("has no text"));
}

TEST(OpenAiMessages, NoPartsAreNoText) {
  const ordered_json messages = ordered_json::parse(R"([{"role": "user", "content": []}])");
  EXPECT_EQ(Render("[{{ messages[0].content }}]", messages), "[]");
}

TEST(OpenAiMessages, ArgumentsThatAreTheTextOfAnObjectBecomeTheObject) {
  EXPECT_EQ(Render("{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }} "
                   "{% endfor %}",
                   kCalls),
            R"({"b": 1.0, "a": ["x"]} {} "{broken" "3" )");
}

TEST(OpenAiMessages, ATemplateThatAppendsArgumentsToTextGetsThemAsTheyCame) {
  EXPECT_EQ(Render("{% for c in messages[0].tool_calls %}{{ c.function.name + c.function.arguments "
                   "}} {% endfor %}",
                   kCalls),
            R"(f{"b": 1.0, "a": ["x"]} g h{broken i3 )");
}

TEST(OpenAiMessages, AContentOfNullIsEmptyForATemplateThatReadsText) {
  ordered_json messages = kCalls;
  messages[0]["content"] = nullptr;
  EXPECT_EQ(Render("{{ '[' + messages[0].content + ']' }}", messages), "[]");
  EXPECT_EQ(Render("{{ messages[0].content is defined }}", messages), "False");
  EXPECT_THAT(Render("{{ messages[0].content + 3 }}", messages), HasSubstr("error: "));
}

TEST(OpenAiMessages, WhatTheTemplateWouldSwallowIsRefused) {
  constexpr std::string_view kThreeRoles =
      "{% for m in messages %}{% if m.role in ['user', 'tool'] %}{{ m.content }}{% endif %}"
      "{% endfor %}{{ style }}";
  const auto with = [&](const char* message) {
    return Render(kThreeRoles, ordered_json::array({{{"role", "user"}, {"content", "Hi"}},
                                                    ordered_json::parse(message)}));
  };
  EXPECT_EQ(with(R"({"role": "tool", "content": "3", "name": "f", "tool_call_id": "c"})"), "Hi3");
  EXPECT_THAT(with(R"({"role": "king", "content": "x"})"),
              HasSubstr("messages[1] has the role \"king\", whose messages"));
  EXPECT_THAT(with(R"({"role": "developer", "content": "x"})"), HasSubstr("leaves out"));
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "foo": 1})"),
              HasSubstr("messages[1] has the field \"foo\""));
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "name": "Ann"})"), HasSubstr("\"name\""));
  EXPECT_EQ(with(R"({"role": "user", "content": "x", "name": null, "style": "s", "refusal": ""})"),
            "Hix");
  const auto chat_template = text::ChatTemplate::Parse(kThreeRoles);
  const auto said = [&](const char* variables) {
    const auto text =
        RenderMessages(*chat_template, ordered_json::parse(R"([{"role": "user", "content": "x"}])"),
                       {.variables = ordered_json::parse(variables)});
    return text ? *text : text.error().message;
  };
  EXPECT_EQ(said(R"({"style": "!"})"), "x!");
  EXPECT_THAT(said(R"({"depth": 1})"), HasSubstr("chat_template_kwargs has \"depth\""));
}

TEST(OpenAiMessages, WhatIsOfTheWrongShapeIsLeftToTheTemplate) {
  for (const char* calls :
       {"3", "[]", "[3]", "[{}]", R"([{"function": 3}])", R"([{"function": {"arguments": 3}}])"}) {
    ordered_json messages = kCalls;
    messages[0]["tool_calls"] = ordered_json::parse(calls);
    EXPECT_EQ(Render("x", messages), "x") << calls;
  }
  EXPECT_THAT(Render("x", ordered_json::parse("[3]")), HasSubstr("error: messages[0]"));
  EXPECT_THAT(Render("x", ordered_json::parse("3")), HasSubstr("error: messages must be"));
}

}  // namespace
}  // namespace convene::openai
