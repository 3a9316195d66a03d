#include "openai/responses_body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace convene::openai {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::variant<GenerationBody, FieldError> ParseResponses(const std::string& text) {
  const auto body = ParseOrderedJson(text);
  EXPECT_TRUE(body.ok()) << text;
  return ParseResponsesBody(*body, {.seed = 5});
}

GenerationBody ParsedResponses(const std::string& text) {
  auto parsed = ParseResponses(text);
  if (const auto* wrong = std::get_if<FieldError>(&parsed)) ADD_FAILURE() << wrong->error.message;
  return std::holds_alternative<GenerationBody>(parsed) ? std::get<GenerationBody>(parsed)
                                                        : GenerationBody();
}

TEST(ResponsesBody, IsTheChatThatItStandsFor) {
  const GenerationBody body = ParsedResponses(R"({
    "model": "m", "instructions": "Be brief.", "max_output_tokens": 7, "temperature": 0.5,
    "top_p": 0.9, "stream": true, "store": false, "metadata": {"a": "b"}, "truncation": "disabled",
    "input": [
      {"role": "user", "content": "Hi"},
      {"type": "reasoning", "id": "rs_1", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Hm."}]},
      {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
       "content": [{"type": "output_text", "text": "Well.", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "3"},
      {"role": "user", "content": [{"type": "input_text", "text": "So?"}]}],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
    "tool_choice": {"type": "function", "name": "f"}})");
  EXPECT_TRUE(body.is_chat);
  EXPECT_TRUE(body.is_response);
  EXPECT_TRUE(body.streams);
  EXPECT_EQ(body.request.max_tokens, 7);
  ASSERT_EQ(body.messages.size(), 5u);
  EXPECT_EQ(body.messages[0]["role"], "system");
  EXPECT_EQ(body.messages[2]["reasoning_content"], "Hm.");
  EXPECT_EQ(body.messages[2]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(body.messages[3]["tool_call_id"], "c1");
  EXPECT_EQ(body.messages[4]["content"][0]["type"], "text");
  EXPECT_EQ(body.tools[0]["function"]["name"], "f");
  EXPECT_EQ(body.tools[0]["function"]["strict"], true);
  EXPECT_EQ(body.named_tool, "f");
  EXPECT_EQ(body.repeated["instructions"], "Be brief.");
  EXPECT_EQ(body.repeated["tool_choice"]["name"], "f");
  EXPECT_EQ(ParsedResponses(R"({"input": "Hi"})").messages[0]["content"], "Hi");
  const char* with_schema = R"({"input": "Hi", "text": {"format": {"type": "json_schema",
                                "name": "n", "schema": {"type": "null"}, "strict": true}}})";
  EXPECT_EQ(ParsedResponses(with_schema).schema["type"], "null");
}

TEST(ResponsesBody, TakesReasoningAsATextOrInParts) {
  for (const std::string summary :
       {R"("Hm.")",
        R"([{"type": "summary_text", "text": "H"}, {"type": "summary_text", "text": "m."}])"}) {
    const GenerationBody body = ParsedResponses(
        R"({"input": [{"type": "reasoning", "summary": )" + summary +
        R"(}, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "So?"}]})");
    ASSERT_EQ(body.messages.size(), 2u);
    EXPECT_EQ(body.messages[0]["reasoning_content"], "Hm.");
  }
}

TEST(ResponsesBody, TheEffortOfReasoningIsTheTemplatesVariable) {
  const auto parsed =
      ParseResponses(R"({"input": "x", "reasoning": {"effort": "low", "summary": "auto"}})");
  const auto& body = std::get<GenerationBody>(parsed);
  EXPECT_EQ(body.template_variables["reasoning_effort"], "low");
  EXPECT_EQ(body.repeated["reasoning"]["effort"], "low");
}

TEST(ResponsesBody, TakesBackWhatClientsWriteBesideAnswersAndNullsOfTheApi) {
  const auto parsed = ParseResponses(R"({"max_tool_calls": null, "prompt": null, "input": [
      {"role": "assistant", "content": [{"type": "output_text", "text": "{}", "annotations": [],
                                         "logprobs": [], "parsed": {"a": 1}}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}",
       "parsed_arguments": {}},
      {"type": "function_call_output", "call_id": "c", "output": "x"}]})");
  const auto* body = std::get_if<GenerationBody>(&parsed);
  ASSERT_NE(body, nullptr) << std::get<FieldError>(parsed).error.message;
  EXPECT_EQ(body->messages[0]["content"],
            nlohmann::ordered_json::parse(R"([{"type": "text", "text": "{}"}])"));
}

TEST(ResponsesBody, NamesTheFieldAtFault) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input"},
      {R"({"input": [{"role": "king", "content": "x"}]})", "input"},
      {R"({"input": [{"type": "reasoning", "summary": {"text": "x"}}]})", "input"},
      {R"({"input": [{"role": "user", "content": "x", "zork": 1}]})", "input"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "y": 1}]}]})",
       "input"},
      {R"({"input": "x", "zork": null})", "zork"},
      {R"({"input": "x", "user": 5})", "user"},
      {R"({"input": "x", "previous_response_id": "resp_1"})", "previous_response_id"},
      {R"({"input": "x", "store": true})", "store"},
      {R"({"input": "x", "background": true})", "background"},
      {R"({"input": "x", "n": 2})", "n"},
      {R"({"input": "x", "messages": []})", "messages"},
      {R"({"input": "x", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "x", "text": {"verbosity": "low"}})", "text"},
      {R"({"input": "x", "text": {"format": {"type": "xml"}}})", "text.format"},
      {R"({"input": "x", "tools": [{"type": "web_search"}]})", "tools"},
      {R"({"input": "x", "tool_choice": "required"})", "tool_choice"},
      {R"({"input": "x", "instructions": 1})", "instructions"},
      {R"({"input": "x", "reasoning": "low"})", "reasoning"},
      {R"({"input": "x", "reasoning": {"effort": 1}})", "reasoning.effort"},
      {R"({"input": "x", "reasoning": {"summary": "detailed"}})", "reasoning"},
      {R"({"input": "x", "reasoning": {"budget": 9}})", "reasoning"},
  };
  for (const auto& [text, field] : cases) {
    const auto parsed = ParseResponses(text);
    const auto* wrong = std::get_if<FieldError>(&parsed);
    ASSERT_NE(wrong, nullptr) << text;
    EXPECT_EQ(wrong->field, field) << text;
    if (field == "max_output_tokens") {
      EXPECT_THAT(wrong->error.message, StartsWith("max_output_tokens must"));
    }
    if (field == "store") {
      EXPECT_THAT(wrong->error.message, HasSubstr("nothing is stored"));
    }
  }
}

TEST(ResponsesBody, ErrorsOfTheChatAreAboutItsOwnFields) {
  const FieldError schema =
      InResponses({Error{"response_format.json_schema.schema: the keyword is not supported"},
                   "response_format"},
                  {});
  EXPECT_EQ(schema.field, "text.format");
  EXPECT_EQ(schema.error.message, "text.format.schema: the keyword is not supported");
  const FieldError tool = InResponses(
      {Error{"tools[0].function.parameters: the keyword is not supported"}, "tools"}, {});
  EXPECT_EQ(tool.error.message, "tools[0].parameters: the keyword is not supported");
  EXPECT_EQ(InResponses({Error{"messages[0] is odd"}, "messages"}, {}).field, "input");
}

TEST(ResponsesBody, ErrorsOfMessagesNameTheirItems) {
  const std::vector<MessageItems> items =
      ParsedResponses(R"({"instructions": "Be brief.", "input": [
      {"role": "user", "content": "Hi"},
      {"type": "reasoning", "summary": "Hm."},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "3"}]})")
          .message_items;
  const auto named = [&](const std::string& message) {
    const FieldError error = InResponses({Error{message}, "messages"}, items);
    return error.field + ": " + error.error.message;
  };
  EXPECT_EQ(named("messages[0] is odd"), "instructions: instructions is odd");
  EXPECT_EQ(named("messages[1] is odd"), "input: input[0] is odd");
  EXPECT_EQ(named("messages[2].tool_calls[0] is odd"), "input: input[2] is odd");
  EXPECT_EQ(named("messages[2].tool_calls[1] is odd"), "input: input[3] is odd");
  EXPECT_EQ(named("messages[3] is odd"), "input: input[4] is odd");
  EXPECT_EQ(named("messages[9] is odd"), "input: input[9] is odd");
  EXPECT_EQ(named("messages must be odd"), "input: input must be odd");
  EXPECT_EQ(named("a template's words"), "input: a template's words");
  const std::vector<MessageItems> whole =
      ParsedResponses(R"({"instructions": "Be brief.", "input": "Hi"})").message_items;
  EXPECT_EQ(InResponses({Error{"messages[1] is odd"}, "messages"}, whole).error.message,
            "input is odd");
}

}  // namespace
}  // namespace convene::openai
