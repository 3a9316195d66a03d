#include "openai/generation_body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

namespace convene::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::variant<GenerationBody, FieldError> Parse(const std::string& fields, bool is_chat = true) {
  const std::string start = is_chat ? R"({"messages": [{"role": "user", "content": "x"}])" : "{";
  const auto body =
      ParseOrderedJson(start + (is_chat && !fields.empty() ? ", " : "") + fields + "}");
  EXPECT_TRUE(body.ok()) << fields;
  return ParseGenerationBody(*body, is_chat, BodyOrigin::kServer, {.seed = 5});
}

GenerationBody Parsed(const std::string& fields, bool is_chat = true) {
  auto parsed = Parse(fields, is_chat);
  if (const auto* wrong = std::get_if<FieldError>(&parsed)) ADD_FAILURE() << wrong->error.message;
  return std::holds_alternative<GenerationBody>(parsed) ? std::get<GenerationBody>(parsed)
                                                        : GenerationBody();
}

std::string FieldAtFault(const std::string& fields, bool is_chat = true) {
  const auto parsed = Parse(fields, is_chat);
  const auto* wrong = std::get_if<FieldError>(&parsed);
  return wrong == nullptr ? "none" : wrong->field;
}

TEST(GenerationBody, ReadsWhatIsAskedOfSampling) {
  const GenerationBody body = Parsed(
      R"("temperature": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": -2, "n": 3,
         "frequency_penalty": 1.5, "repetition_penalty": 1.1, "seed": 9, "stop": ["a", "b"],
         "logit_bias": {"12": -100, "7": 1.5}, "logprobs": true, "top_logprobs": 2,
         "chat_template_kwargs": {"enable_thinking": false}, "priority": -1)");
  EXPECT_EQ(body.request.sampling.presence_penalty, -2);
  EXPECT_EQ(body.request.sampling.frequency_penalty, 1.5);
  EXPECT_EQ(body.request.sampling.seed, 9u);
  EXPECT_EQ(body.num_answers, 3);
  EXPECT_EQ(body.priority, -1);
  EXPECT_EQ(body.request.num_logprobs, 2);
  EXPECT_THAT(body.request.stop, ElementsAre("a", "b"));
  ASSERT_EQ(body.request.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(body.request.sampling.logit_bias[0].token, 7);
  EXPECT_EQ(body.request.sampling.logit_bias[1].bias, -100);
  EXPECT_EQ(body.template_variables["enable_thinking"], false);
  EXPECT_EQ(Parsed("").request.sampling.seed, 5u);
  EXPECT_EQ(Parsed(R"("reasoning_effort": "low")").template_variables,
            nlohmann::ordered_json({{"reasoning_effort", "low"}}));
}

TEST(GenerationBody, ReadsPromptsOfEveryForm) {
  EXPECT_EQ(Parsed(R"("prompt": "x")", false).prompts.size(), 1u);
  EXPECT_EQ(std::get<1>(Parsed(R"("prompt": [1, 2])", false).prompts[0]).size(), 2u);
  EXPECT_EQ(Parsed(R"("prompt": ["x", "y"])", false).prompts.size(), 2u);
  EXPECT_EQ(Parsed(R"("prompt": [[1], [2, 3]])", false).prompts.size(), 2u);
  EXPECT_EQ(Parsed(R"("prompt": "x")", false).request.max_tokens, kDefaultCompletionTokens);
  for (const std::string wrong : {R"("prompt": [])", R"("prompt": [[]])", R"("prompt": [1, "x"])",
                                  R"("prompt": [-1])", R"("prompt": [1.5])", R"("prompt": {})",
                                  R"("prompt": [4294967296])", R"("prompt": [[[1]]])"}) {
    EXPECT_EQ(FieldAtFault(wrong, false), "prompt") << wrong;
  }
}

TEST(GenerationBody, NamesTheFieldAtFault) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("n": 0)", "n"},
      {R"("n": 129)", "n"},
      {R"("presence_penalty": 3)", "presence_penalty"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"-1": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 101})", "logit_bias"},
      {R"("logit_bias": {"7": 1, "07": 2})", "logit_bias"},
      {R"("logit_bias": [])", "logit_bias"},
      {R"("stop": [1])", "stop"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": {"usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "include_usage"},
      {R"("return_progress": true)", "return_progress"},
      {R"("stream": true, "return_progress": 1)", "return_progress"},
      {R"("tools": {})", "tools"},
      {R"("tools": [1])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("reasoning_effort": 3)", "reasoning_effort"},
      {R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"})",
       "reasoning_effort"},
      {R"("top_logprobs": 3)", "top_logprobs"},
      {R"("max_tokens": 1, "max_completion_tokens": 2)", "max_tokens"},
      {R"("tools": [{"type": "function", "function": {}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "any")",
       "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": {"name": "g"}})",
       "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": {"name": "f", "strict": true}})",
       "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": {"name": "f"}, "mode": "auto"})",
       "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}])", "tools"},
      {R"("tools": [{"type": "function",
                     "function": {"name": "f", "parameters": {"type": "string"}}}])",
       "tools"},
      {R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("response_format": {"type": "json_schema",
                              "json_schema": {"schema": {}, "strict": "yes"}})",
       "response_format"},
      {R"("response_format": "json_object")", "response_format"},
      {R"("response_format": {"type": "json_object"}, "tool_choice": "required",
          "tools": [{"type": "function", "function": {"name": "f"}}])",
       "response_format"},
      {R"("response_format": {"type": "grammar"})", "response_format"},
      {R"("response_format": {"type": "json_object", "schema": {}})", "response_format"},
      {R"("response_format": {"type": "json_schema"})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": true}})",
       "response_format"},
      {R"("echo": true)", "echo"},
      {R"("prompt": "x")", "prompt"},
  };
  for (const auto& [fields, field] : cases) EXPECT_EQ(FieldAtFault(fields), field) << fields;
}

TEST(GenerationBody, ReadsWhichToolsMayBeCalledAndTheFormOfTheContent) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(Parsed(tools).tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(Parsed(tools).tools.size(), 1u);
  const GenerationBody none = Parsed(tools + R"(, "tool_choice": "none")");
  EXPECT_EQ(none.tool_choice, ToolChoice::kNone);
  EXPECT_TRUE(none.tools.is_null());
  EXPECT_EQ(Parsed(tools + R"(, "tool_choice": "required")").tool_choice, ToolChoice::kRequired);
  const GenerationBody named =
      Parsed(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "f"}},
                 "parallel_tool_calls": false)");
  EXPECT_EQ(named.named_tool, "f");
  EXPECT_FALSE(named.parallel_calls);
  EXPECT_EQ(Parsed(R"("response_format": {"type": "text"})").format, TextFormat::kText);
  EXPECT_EQ(Parsed(R"("response_format": {"type": "json_object"})").format,
            TextFormat::kJsonObject);
  EXPECT_EQ(Parsed(R"("response_format": {"type": "json_schema", "json_schema":
                      {"name": "x", "strict": true, "schema": {"type": "null"}}})")
                .schema["type"],
            "null");
}

}  // namespace
}  // namespace convene::openai
