// Any bytes as the body of a server's request: an error that names what is wrong, or a request
// whose options are in range, and where its answer is to have a form, a grammar that can begin.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "base/json.h"
#include "grammar/automaton.h"
#include "openai/answer_forms.h"
#include "openai/generation_body.h"
#include "openai/responses_body.h"
#include "openai/token_requests.h"

namespace {

using convene::openai::FieldError;
using convene::openai::GenerationBody;

void CheckBody(const GenerationBody& body) {
  CHECK(convene::engine::Validate(body.request.sampling).ok());
  CHECK(body.num_answers >= 1 && body.num_answers <= convene::openai::kMaxAnswers);
  CHECK(!body.request.max_tokens || *body.request.max_tokens > 0);
  CHECK(body.request.num_logprobs.value_or(0) >= 0);
  CHECK(body.named_tool.empty() == (body.tool_choice != convene::openai::ToolChoice::kNamed));
  CHECK(body.is_chat == body.messages.is_array());
  CHECK(body.prompts.empty() == body.is_chat);
  CHECK(body.streams || !body.streams_usage);
  for (const auto& bias : body.request.sampling.logit_bias) CHECK(bias.token >= 0);
}

// As a model with tags would answer.
void CheckForm(const GenerationBody& body) {
  static const convene::openai::AnswerSyntax syntax = {.calls = convene::openai::CallForm::kObjects,
                                                       .call_begin = "<tool_call>",
                                                       .call_end = "</tool_call>",
                                                       .think_begin = "<think>",
                                                       .think_end = "</think>"};
  auto made = convene::openai::GrammarOf(syntax, "", body);
  if (const auto* wrong = std::get_if<FieldError>(&made)) {
    CHECK(!wrong->error.message.empty());
    return;
  }
  auto& grammar = std::get<std::optional<convene::grammar::Grammar>>(made);
  if (!grammar) return;
  // Whatever comes first, something may come behind it.
  convene::grammar::Automaton automaton(*std::move(grammar));
  int32_t state = automaton.StateOf(automaton.Start());
  for (int step = 0; step < 40 && automaton.MayGoOn(state); ++step) {
    int32_t next = convene::grammar::Automaton::kDead;
    for (int byte = 255; byte >= 0 && next < 0; --byte) {
      next = automaton.Next(state, static_cast<unsigned char>(byte));
    }
    CHECK(next >= 0, "nothing leads on");
    state = next;
  }
}

const convene::text::Tokenizer& SmallTokenizer() {
  static const auto tokenizer = convene::text::Tokenizer::FromJson(
      R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "decoder": {"type": "ByteLevel"},
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
  CHECK(tokenizer.ok());
  return *tokenizer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = convene::ParseOrderedJson(text);
  if (!json || !json->is_object()) return 0;
  for (const bool is_chat : {true, false}) {
    const auto parsed = convene::openai::ParseGenerationBody(
        *json, is_chat, convene::openai::BodyOrigin::kServer, {});
    if (const auto* wrong = std::get_if<FieldError>(&parsed)) {
      CHECK(!wrong->error.message.empty());
    } else {
      CheckBody(std::get<GenerationBody>(parsed));
      CheckForm(std::get<GenerationBody>(parsed));
    }
  }
  const auto response = convene::openai::ParseResponsesBody(*json, {});
  if (const auto* wrong = std::get_if<FieldError>(&response)) {
    CHECK(!wrong->error.message.empty());
  } else {
    CheckBody(std::get<GenerationBody>(response));
    CheckForm(std::get<GenerationBody>(response));
  }
  static const auto chat_template = convene::text::ChatTemplate::Parse(
      "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}");
  for (const auto& answer :
       {convene::openai::AnswerTokenize(*json, SmallTokenizer(), chat_template, 9),
        convene::openai::AnswerDetokenize(*json, SmallTokenizer())}) {
    const auto* wrong = std::get_if<FieldError>(&answer);
    CHECK(wrong == nullptr || !wrong->error.message.empty());
  }
  return 0;
}
