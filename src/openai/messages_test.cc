#include "openai/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "openai/template_coverage.h"

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
std::string Render(std::string_view source, const ordered_json& messages,
                   const ordered_json& variables = nullptr) {
  const auto chat_template = text::ChatTemplate::Parse(source);
  if (!chat_template) return "error: " + chat_template.error().message;
  text::RenderOptions options;
  options.variables = variables;
  if (const FieldStatus unread = CheckOptionsAreRead(*chat_template, options)) {
    return "error: " + unread->error.message;
  }
  const auto text = RenderMessages(*chat_template, messages, options);
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

TEST(OpenAiMessages, FieldsOfPartsAndCallsThatNobodyReadsAreRefused) {
  const std::string source = "{% for m in messages %}{{ m.content }}{% endfor %}";
  ordered_json parts = kParts;
  parts[0]["content"][1]["cache_control"] = {{"type", "ephemeral"}};  // a hint
  parts[0]["content"][1]["note"] = nullptr;
  EXPECT_EQ(Render(source, parts), "Be\nbriefHello");
  parts[0]["content"][1]["note"] = 1;
  EXPECT_THAT(Render(source, parts), HasSubstr(R"(messages[0].content[1] has the field "note")"));

  const std::string calling =
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}{{ "
      "c.function.arguments }}{% endfor %}{% endfor %}";
  ordered_json messages = {{{"role", "assistant"}, {"tool_calls", {kCalls[0]["tool_calls"][1]}}}};
  ordered_json& call = messages[0]["tool_calls"][0];
  call["index"] = 0;
  call["function"]["parsed_arguments"] = {{"a", 1}};
  EXPECT_EQ(Render(calling, messages), "g{}");
  call["note"] = 1;
  EXPECT_THAT(Render(calling, messages),
              HasSubstr(R"(messages[0].tool_calls[0] has the field "note")"));
  call.erase("note");
  call["function"]["note"] = 1;
  EXPECT_THAT(Render(calling, messages), HasSubstr(R"(has the field "function.note")"));
  call["function"].erase("note");
  call["type"] = "custom";
  EXPECT_THAT(Render(calling, messages), HasSubstr("is of the type \"custom\""));
}

TEST(OpenAiMessages, NoPartsAreNoText) {
  const ordered_json messages = ordered_json::parse(R"([{"role": "user", "content": []}])");
  EXPECT_EQ(Render("[{{ messages[0].content }}]", messages), "[]");
}

TEST(OpenAiMessages, ArgumentsThatAreTheTextOfAnObjectBecomeTheObject) {
  EXPECT_EQ(Render("{% for c in messages[0].tool_calls %}{{ c.function.name }}"
                   "{{ c.function.arguments | tojson }} {% endfor %}",
                   kCalls),
            R"(f{"b": 1.0, "a": ["x"]} g{} h"{broken" i"3" )");
}

TEST(OpenAiMessages, ATemplateThatAppendsArgumentsToTextGetsThemAsTheyCame) {
  EXPECT_EQ(Render("{% for c in messages[0].tool_calls %}{{ c.function.name + c.function.arguments "
                   "}} {% endfor %}",
                   kCalls),
            R"(f{"b": 1.0, "a": ["x"]} g h{broken i3 )");
}

// Answers that call tools have no content, or null; the API's clients leave out what is null.
TEST(OpenAiMessages, AContentThatIsNotThereIsEmptyForATemplateThatReadsText) {
  constexpr const char* kNames =
      "{% for c in messages[0].tool_calls %}{{ c.function.name }}{% endfor %}";
  ordered_json with_null = kCalls;
  with_null[0]["content"] = nullptr;
  for (const ordered_json& messages : {kCalls, with_null}) {
    EXPECT_EQ(Render(std::string("{{ '[' + messages[0].content + ']' }}") + kNames, messages),
              "[]fghi");
    EXPECT_EQ(Render(std::string("{{ messages[0].content is defined }}") + kNames, messages),
              "Falsefghi");
    EXPECT_THAT(Render("{{ messages[0].content + 3 }}", messages), HasSubstr("error: "));
  }
  EXPECT_THAT(
      Render("{{ messages[0].content + '' }}", ordered_json::parse(R"([{"role": "user"}])")),
      HasSubstr("error: "));
}

TEST(OpenAiMessages, AMessageWithoutContentIsNamedWhereTheTemplateNeedsIt) {
  const auto messages =
      ordered_json::parse(R"([{"role": "user", "content": "a"}, {"role": "user"}])");
  EXPECT_THAT(Render("{% for m in messages %}{{ m.content + '.' }}{% endfor %}", messages),
              HasSubstr("error: messages[1] has no content: "));
  EXPECT_EQ(Render("{% for m in messages %}{{ m.role }};{{ m.content }}{% endfor %}", messages),
            "user;auser;");
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
  EXPECT_THAT(
      with(R"({"role": "system", "content": "x"})"),
      HasSubstr("messages[1] has the role \"system\", and the model's chat template leaves"));
  EXPECT_EQ(with(R"({"role": "system", "content": ""})"), "Hi");
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "foo": 1})"),
              HasSubstr("messages[1] has the field \"foo\""));
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "name": "Ann"})"), HasSubstr("\"name\""));
  EXPECT_EQ(with(R"({"role": "user", "content": "x", "name": null, "refusal": ""})"), "Hix");
  // Names that the template has for something else.
  for (const char* field : {"e", "content_", "style", "mess", "user"}) {
    EXPECT_THAT(
        with((R"({"role": "user", "content": "x", ")" + std::string(field) + R"(": 1})").c_str()),
        HasSubstr("messages[1] has the field"))
        << field;
  }
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "refusal": "No."})"), HasSubstr("refusal"));
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "function_call": {"name": "f"}})"),
              HasSubstr("function_call"));
  EXPECT_THAT(with(R"({"role": "user", "content": "x", "tool_calls": [
                       {"type": "function", "function": {"name": "f", "arguments": "{}"}}]})"),
              HasSubstr("messages[1].tool_calls[0] is left out"));
}

TEST(OpenAiMessages, ASystemMessageThatTheTemplateHasNoPlaceForIsRefused) {
  constexpr std::string_view kFirstAlone =
      "{% if messages[0].role == 'system' %}<{{ messages[0].content | trim }}>{% endif %}"
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
  const auto parsed = [](const char* text) { return ordered_json::parse(text); };
  const ordered_json one = parsed(R"([{"role": "system", "content": "A"},
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Old"},
      {"role": "user", "content": "So?"}])");
  EXPECT_EQ(Render(kFirstAlone, one), "<A>HiSo?");
  const ordered_json two = parsed(R"([{"role": "system", "content": "A"},
      {"role": "system", "content": "B"}, {"role": "user", "content": "Hi"}])");
  EXPECT_THAT(Render(kFirstAlone, two), HasSubstr("messages[1] has the role \"system\""));
  const ordered_json later = parsed(R"([{"role": "user", "content": "Hi"},
      {"role": "system", "content": "B"}, {"role": "user", "content": "So?"}])");
  EXPECT_THAT(Render(kFirstAlone, later), HasSubstr("messages[1] has the role \"system\""));
  EXPECT_THAT(Render("{{ messages[-1].content }}", one),
              HasSubstr("messages[0] has the role \"system\""));
  // In parts, for a template that reads nothing else.
  const std::string parts_alone =
      "{% for m in messages if m.role != 'system' %}{% for part in m.content %}{{ part.text }}"
      "{% endfor %}{% endfor %}";
  ordered_json in_parts = kParts;
  in_parts[1]["content"] = in_parts[0]["content"];
  EXPECT_THAT(Render(parts_alone, in_parts), HasSubstr("messages[0] has the role \"system\""));
  in_parts.erase(size_t{0});
  EXPECT_EQ(Render(parts_alone, in_parts), "Bebrief");
}

TEST(OpenAiMessages, TemplatesThatJoinASystemMessageToATurnOrRefuseItDoAsBefore) {
  const ordered_json called = ordered_json::parse(R"([{"role": "system", "content": "A"},
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "f."},
      {"role": "tool", "content": "3"}])");
  EXPECT_EQ(Render("{% set ns = namespace(system='') %}{% for m in messages %}"
                   "{% if m.role == 'system' %}{% set ns.system = m.content + ': ' %}"
                   "{% else %}{{ ns.system + m.content }};{% set ns.system = '' %}{% endif %}"
                   "{% endfor %}",
                   called),
            "A: Hi;f.;3;");
  // To the last turn, which may be the user's no more.
  constexpr std::string_view kToTheLast =
      "{% for m in messages %}{% if m.role != 'system' %}{% if m.role == 'user' and loop.last %}"
      "{{ messages[0].content + ': ' }}{% endif %}{{ m.content }};{% endif %}{% endfor %}";
  EXPECT_EQ(Render(kToTheLast, called), "Hi;f.;3;");
  EXPECT_THAT(Render("{% for m in messages %}{% if m.role == 'system' %}"
                     "{{ raise_exception('no system') }}{% endif %}{% endfor %}",
                     called),
              HasSubstr("no system"));
}

// Also where the message that was asked about, or the value that was given, changes nothing.
TEST(OpenAiMessages, FieldsThatTheTemplateReadsPass) {
  constexpr const char* kFields =
      "{% for m in messages %}{{ m.content }}{% if m.partial %}...{% elif m.step == 1 %}!{% endif "
      "%}"
      "{% for d in m.documents or [] %}({{ d.id }}){% endfor %}{% if m.role == 'user' %}"
      "{% for key in ['from', 'to'] %}{{ m[key] }}{% endfor %}{% endif %}{% endfor %}";
  const auto with = [&](const char* field) {
    return Render(kFields,
                  ordered_json::array({ordered_json::parse(R"({"role": "user", "content": "x", )" +
                                                           std::string(field) + "}")}));
  };
  EXPECT_EQ(with(R"("partial": true)"), "x...");
  EXPECT_EQ(with(R"("partial": false)"), "x");
  EXPECT_EQ(with(R"("step": 1)"), "x!");
  EXPECT_EQ(with(R"("documents": [{"id": 7}])"), "x(7)");
  EXPECT_EQ(with(R"("documents": [])"), "x");
  EXPECT_EQ(with(R"("to": "Ann")"), "xAnn");
  EXPECT_THAT(with(R"("of": "Ann")"), HasSubstr("\"of\""));
  EXPECT_EQ(Render("{{ messages | tojson }}",
                   ordered_json::parse(R"([{"role": "user", "content": "x", "any": 3}])")),
            R"([{"role": "user", "content": "x", "any": 3}])");
}

TEST(OpenAiMessages, VariablesThatTheTemplateReadsSomewherePass) {
  constexpr const char* kVariables =
      "{% macro last(m) %}{{ m.content }}{{ tail }}{% endmacro %}"
      "{% if thinks is not defined %}{% set thinks = true %}{% endif %}"
      "{% set own = 'strip' %}{{ last(messages[0]) }}"
      "{% if messages | length > 1 and keeps_all %}{{ own }}{% endif %}";
  const auto with = [&](const char* variables) {
    return Render(kVariables, ordered_json::parse(R"([{"role": "user", "content": "x"}])"),
                  ordered_json::parse(variables));
  };
  EXPECT_EQ(with(R"({"tail": "!", "thinks": false, "keeps_all": true})"), "x!");
  for (const char* name : {"depth", "mess", "own", "last", "m", "strip", "content", "length"}) {
    EXPECT_THAT(with((R"({")" + std::string(name) + R"(": 1})").c_str()),
                HasSubstr("chat_template_kwargs has"))
        << name;
  }
  EXPECT_THAT(with(R"({"reasoning_effort": "low"})"),
              HasSubstr("reasoning_effort cannot be given: the model's chat template"));
}

TEST(OpenAiMessages, DevelopersAreTheSystemForATemplateThatKnowsNone) {
  const ordered_json messages =
      ordered_json::parse(R"([{"role": "developer", "content": "Be brief."},
      {"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": []}])");
  EXPECT_EQ(
      Render("{% for m in messages %}{{ m.role[0] }}:{{ m.content + ' ' }}{% endfor %}", messages),
      "d:Be brief. u:Hi a: ");
  constexpr const char* kSystem =
      "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
      "{{ m.role[0] }}:{{ m.content + ' ' }}{% else %}OTHER{% endif %}{% endfor %}";
  std::string source = kSystem;
  EXPECT_EQ(Render(source.replace(source.find("OTHER"), 5, ""), messages), "s:Be brief. u:Hi a: ");
  source = kSystem;
  EXPECT_EQ(
      Render(source.replace(source.find("OTHER"), 5, "{{ raise_exception('who?') }}"), messages),
      "s:Be brief. u:Hi a: ");
}

TEST(OpenAiMessages, WhatIsOfTheWrongShapeIsRefused) {
  for (const char* calls :
       {"3", "[3]", "[{}]", R"([{"function": 3}])", R"([{"function": {"arguments": "{}"}}])"}) {
    ordered_json messages = kCalls;
    messages[0]["tool_calls"] = ordered_json::parse(calls);
    EXPECT_THAT(Render("x", messages), HasSubstr("messages[0].tool_calls must be")) << calls;
  }
  EXPECT_THAT(Render("x", ordered_json::parse("[3]")), HasSubstr("error: messages[0]"));
  EXPECT_THAT(Render("x", ordered_json::parse("3")), HasSubstr("error: messages must be"));
}

}  // namespace
}  // namespace convene::openai
