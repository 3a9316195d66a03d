#include "server/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace convene::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Recorded : Responder {
  void Respond(const Response& response) override {
    status = response.status;
    text = response.body;
    ++num_ends;
  }
  void BeginStream(const Response& head) override { status = head.status; }
  void Send(const std::string& data) override {
    text += data;
    if (when_sent) std::exchange(when_sent, nullptr)();
  }
  void EndStream() override { ++num_ends; }
  void WhenGone(std::function<void()>) override {}

  int status = 0;
  std::string text;
  int num_ends = 0;
  std::function<void()> when_sent;  // called once
};

class ExchangeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ =
        new Result<text::Tokenizer>(text::Tokenizer::Load(CONVENE_SOURCE_DIR "/models/demo"));
    ASSERT_TRUE(tokenizer_->ok());
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  Exchange Make(bool streams, int num_answers = 1, bool is_chat = true,
                const openai::AnswerReading& reading = {}, openai::GenerationBody body = {}) {
    body.is_chat = is_chat;
    body.streams = streams;
    body.streams_usage = streams;
    body.num_answers = num_answers;
    return Exchange(responder_, body, reading, {.id = "chatcmpl-1", .created = 7, .model = "m"},
                    std::vector<size_t>(static_cast<size_t>(num_answers), 70), {}, Clock::now(),
                    **tokenizer_, metrics_);
  }

  static JobEvent Event(int choice_idx, const std::string& text, bool is_first = false,
                        std::optional<engine::FinishReason> finish = {}) {
    JobEvent event{.job = 1, .choice_idx = choice_idx, .when = Clock::now(), .is_first = is_first};
    event.update.start = event.when;
    event.update.text = text;
    event.update.token.token = 36;
    event.update.finish = finish;
    event.update.num_reused_tokens = 64;
    return event;
  }

  // What was sent, each without "data: ".
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    size_t at = 0;
    while (at < responder_->text.size()) {
      const size_t end = responder_->text.find("\n\n", at);
      events.push_back(responder_->text.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return events;
  }

  static inline Result<text::Tokenizer>* tokenizer_ = nullptr;
  std::shared_ptr<Recorded> responder_ = std::make_shared<Recorded>();
  Metrics metrics_;
};

TEST_F(ExchangeTest, WholeAnswersComeOnceWhenAllChoicesHaveEnded) {
  Exchange exchange = Make(false, 2);
  EXPECT_FALSE(exchange.Take(Event(0, "ab", true)));
  EXPECT_FALSE(exchange.Take(Event(1, "x", true, engine::FinishReason::kStop)));
  EXPECT_EQ(responder_->num_ends, 0);
  EXPECT_TRUE(exchange.Take(Event(0, "c", false, engine::FinishReason::kLength)));
  const json body = json::parse(responder_->text);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abc");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][1]["message"]["content"], "x");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 70);  // once for both
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
  EXPECT_EQ(responder_->num_ends, 1);
  EXPECT_EQ(exchange.Figures().finish, "length");
}

TEST_F(ExchangeTest, WholeAnswersHaveTheLogProbabilitiesOfAllTheirTokens) {
  openai::GenerationBody asked;
  asked.request.num_logprobs = 1;
  Exchange exchange = Make(false, 2, /*is_chat=*/true, {}, asked);
  const auto take = [&](int choice_idx, bool is_first, double logprob,
                        std::optional<engine::FinishReason> finish = {}) {
    JobEvent event = Event(choice_idx, "a", is_first, finish);
    event.update.token.logprob = logprob;
    event.update.token.top = {{.token = 37, .logprob = -0.25}};
    return exchange.Take(std::move(event));
  };
  EXPECT_FALSE(take(0, true, -1));
  EXPECT_FALSE(take(1, true, -4, engine::FinishReason::kLength));
  EXPECT_FALSE(take(0, false, -2));
  EXPECT_TRUE(take(0, false, -3, engine::FinishReason::kLength));
  const json choices = json::parse(responder_->text)["choices"];
  const json& first = choices[0]["logprobs"]["content"];
  ASSERT_EQ(first.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first[i]["logprob"], -1.0 - static_cast<double>(i));
    EXPECT_EQ(first[i]["top_logprobs"][0]["logprob"], -0.25);
  }
  ASSERT_EQ(choices[1]["logprobs"]["content"].size(), 1u);
  EXPECT_EQ(choices[1]["logprobs"]["content"][0]["logprob"], -4);
  EXPECT_EQ(json::parse(responder_->text)["usage"]["completion_tokens"], 4);
}

// A special token that the text leaves out, as with ignore_eos, takes no place in it either.
TEST_F(ExchangeTest, OffsetsOfAStreamedCompletionAreThoseOfItsText) {
  int32_t special = 0;
  while (special < (*tokenizer_)->vocab_size() && !(*tokenizer_)->IsSpecial(special)) ++special;
  ASSERT_LT(special, (*tokenizer_)->vocab_size());
  openai::GenerationBody asked;
  asked.request.num_logprobs = 0;
  Exchange exchange = Make(true, 1, /*is_chat=*/false, {}, asked);
  JobEvent left_out = Event(0, "", true);
  left_out.update.token.token = special;
  const std::string text = *(*tokenizer_)->BytesOf(36);
  EXPECT_FALSE(exchange.Take(left_out));
  EXPECT_FALSE(exchange.Take(Event(0, text)));
  EXPECT_TRUE(exchange.Take(Event(0, text, false, engine::FinishReason::kLength)));
  std::vector<size_t> offsets;
  for (const std::string& event : Events()) {
    if (event == "[DONE]" || json::parse(event)["choices"].empty()) continue;
    const json logprobs = json::parse(event)["choices"][0]["logprobs"];
    if (!logprobs.is_null()) offsets.push_back(logprobs["text_offset"][0]);
  }
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(offsets, (std::vector<size_t>{0, 0, 1}));
}

// The number that follows a line's name and labels.
double Figure(const std::string& metrics, const std::string& name) {
  const size_t at = metrics.find("\n" + name + "{");
  if (at == std::string::npos) return -1;
  return std::stod(metrics.substr(metrics.find("} ", at) + 2));
}

TEST_F(ExchangeTest, TimesOfTokensCountTheEndAndWaitingEndsWithTheFirstStep) {
  Exchange exchange = Make(false);
  const Clock::time_point now = Clock::now();
  const auto at = [&](int seconds) { return now + std::chrono::seconds(seconds); };
  const auto take = [&](int when, bool is_first, std::optional<engine::FinishReason> finish) {
    JobEvent event = Event(0, finish ? "" : "a", is_first, finish);
    event.when = at(when);
    event.update.start = at(10);
    event.update.is_end_of_text = finish.has_value();
    return exchange.Take(std::move(event));
  };
  EXPECT_FALSE(take(13, true, {}));
  EXPECT_FALSE(take(15, false, {}));
  EXPECT_TRUE(take(17, false, engine::FinishReason::kStop));
  const std::string text = metrics_.Text("m", 0);
  EXPECT_EQ(Figure(text, "vllm:inter_token_latency_seconds_sum"), 4);
  EXPECT_EQ(Figure(text, "vllm:inter_token_latency_seconds_count"), 2);
  EXPECT_EQ(Figure(text, "vllm:request_time_per_output_token_seconds_sum"), 2);
  EXPECT_EQ(Figure(text, "vllm:generation_tokens_total"), 3);
  EXPECT_EQ(Figure(text, "vllm:request_max_num_generation_tokens_sum"), 3);
  EXPECT_EQ(Figure(text, "vllm:request_max_num_generation_tokens_count"), 1);
  EXPECT_EQ(Figure(text, "vllm:request_params_n_sum"), 1);
  EXPECT_NEAR(Figure(text, "vllm:request_queue_time_seconds_sum"), 10, 1);
  EXPECT_NEAR(Figure(text, "vllm:request_prefill_time_seconds_sum"), 3, 1e-6);
  EXPECT_NEAR(exchange.Figures().queue_s, 10, 1);
  EXPECT_EQ(exchange.Figures().num_generated_tokens, 2);  // of the text
}

TEST_F(ExchangeTest, StreamsTellHowMuchOfThePromptWasRead) {
  Exchange exchange = Make(true);
  JobEvent read = {.when = Clock::time_point(std::chrono::milliseconds(30))};
  read.update.start = Clock::time_point(std::chrono::milliseconds(10));
  read.update.num_reused_tokens = 64;
  read.update.progress = {.num_computed = 66, .num_tokens = 70};
  EXPECT_FALSE(exchange.Take(read));
  EXPECT_FALSE(exchange.Take(Event(0, "ab", true)));
  const std::vector<std::string> events = Events();
  ASSERT_GE(events.size(), 3u);
  const json progress = json::parse(events[0]);
  EXPECT_EQ(progress["prompt_progress"],
            (json{{"total", 70}, {"cache", 64}, {"processed", 66}, {"time_ms", 20}}));
  EXPECT_EQ(progress["choices"][0]["delta"], json::object());
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[2])["choices"][0]["delta"]["content"], "ab");
}

TEST_F(ExchangeTest, StreamsBeginWithARoleAndEndWithReasonUsageAndDone) {
  Exchange exchange = Make(true);
  EXPECT_FALSE(exchange.Take(Event(0, "", true)));  // nothing that may be shown yet
  EXPECT_FALSE(exchange.Take(Event(0, "ab")));
  EXPECT_TRUE(exchange.Take(Event(0, "", false, engine::FinishReason::kStop)));
  const std::vector<std::string> events = Events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"], (json{{"content", "ab"}}));
  EXPECT_EQ(json::parse(events[2])["choices"][0]["delta"], json::object());
  EXPECT_EQ(json::parse(events[2])["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(json::parse(events[3])["choices"].empty());
  EXPECT_EQ(events[4], "[DONE]");
  EXPECT_EQ(responder_->num_ends, 1);
}

// What a model with tags would write, in pieces that cut them.
const std::string kPieces[] = {"<thi",
                               "nk>\nHm",
                               ".</think>\n\nWell.\n<tool_",
                               "call>\n{\"name\": \"f",
                               "\", \"arguments\": {\"a\"",
                               ": 1}}\n</tool_call>"};
const openai::AnswerReading kTags = {{.calls = openai::CallForm::kObjects,
                                      .call_begin = "<tool_call>",
                                      .call_end = "</tool_call>",
                                      .think_begin = "<think>",
                                      .think_end = "</think>"}};

TEST_F(ExchangeTest, ReasoningAndCallsAreToldFromContent) {
  Exchange exchange = Make(false, 1, true, kTags);
  for (const std::string& piece : kPieces) {
    EXPECT_FALSE(exchange.Take(Event(0, piece, &piece == kPieces)));
  }
  EXPECT_TRUE(exchange.Take(Event(0, "", false, engine::FinishReason::kStop)));
  const json body = json::parse(responder_->text);
  const json& message = body["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(message["content"], "Well.");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["function"],
            (json{{"name", "f"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
}

TEST_F(ExchangeTest, CallsAreStreamedAsDeltas) {
  Exchange exchange = Make(true, 1, true, kTags);
  for (const std::string& piece : kPieces) {
    EXPECT_FALSE(exchange.Take(Event(0, piece, &piece == kPieces)));
  }
  EXPECT_TRUE(exchange.Take(Event(0, "", false, engine::FinishReason::kStop)));
  json message = {{"reasoning_content", ""}, {"content", ""}, {"arguments", ""}};
  json begun;
  json finish;
  for (const std::string& event : Events()) {
    if (event == "[DONE]" || json::parse(event)["choices"].empty()) continue;
    const json choice = json::parse(event)["choices"][0];
    for (const char* name : {"reasoning_content", "content"}) {
      message[name] = message[name].get<std::string>() + choice["delta"].value(name, "");
    }
    if (choice["delta"].contains("tool_calls")) {
      const json& call = choice["delta"]["tool_calls"][0];
      EXPECT_EQ(call["index"], 0);
      if (call.contains("id")) begun = call;
      message["arguments"] = message["arguments"].get<std::string>() +
                             call["function"]["arguments"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(message["content"], "Well.");
  EXPECT_EQ(message["arguments"], "{\"a\": 1}");
  EXPECT_EQ(begun["type"], "function");
  EXPECT_EQ(begun["function"], (json{{"name", "f"}, {"arguments", ""}}));
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(ExchangeTest, AResponseGrowsByItems) {
  openai::GenerationBody asked;
  asked.is_response = true;
  asked.repeated = {{"instructions", "Be brief."}};
  Exchange exchange = Make(true, 1, true, kTags, asked);
  for (const std::string& piece : kPieces) {
    EXPECT_FALSE(exchange.Take(Event(0, piece, &piece == kPieces)));
  }
  EXPECT_TRUE(exchange.Take(Event(0, "", false, engine::FinishReason::kLength)));
  std::vector<std::string> types;
  json last;
  for (size_t at = 0; (at = responder_->text.find("event: ", at)) != std::string::npos; ++at) {
    const size_t end = responder_->text.find('\n', at);
    types.push_back(responder_->text.substr(at + 7, end - at - 7));
    const size_t data = end + 7;
    last = json::parse(responder_->text.substr(data, responder_->text.find('\n', data) - data));
    EXPECT_EQ(last["type"], types.back());
    EXPECT_EQ(last["sequence_number"], types.size() - 1);
  }
  using ::testing::IsSupersetOf;
  EXPECT_EQ(types.front(), "response.created");
  EXPECT_EQ(types.back(), "response.incomplete");
  EXPECT_THAT(types,
              IsSupersetOf({"response.output_item.added", "response.reasoning_text.delta",
                            "response.content_part.added", "response.output_text.delta",
                            "response.output_text.done", "response.content_part.done",
                            "response.function_call_arguments.delta",
                            "response.function_call_arguments.done", "response.output_item.done"}));
  const json& response = last["response"];
  EXPECT_EQ(response["instructions"], "Be brief.");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Well.");
  EXPECT_EQ(response["output"][2]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(response["usage"]["output_tokens"], 7);
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 64);
}

// After two seconds in the queue a comment has begun the stream, and nothing more.
TEST_F(ExchangeTest, AResponseThatFailsBeforeItsFirstTokenIsCreatedNevertheless) {
  openai::GenerationBody asked;
  asked.is_response = true;
  asked.repeated = {{"instructions", nullptr}};
  Exchange exchange = Make(true, 1, true, {}, asked);
  exchange.KeepAlive(Clock::duration(0), std::chrono::hours(1));
  exchange.Fail(
      {.status = 429, .message = "full", .type = "rate_limit_error", .code = "queue_full"});
  std::vector<json> events;
  for (size_t at = 0; (at = responder_->text.find("data: ", at)) != std::string::npos; ++at) {
    const size_t begin = at + 6;
    events.push_back(
        json::parse(responder_->text.substr(begin, responder_->text.find('\n', begin) - begin)));
  }
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[1]["type"], "response.in_progress");
  EXPECT_EQ(events[2]["type"], "response.failed");
  EXPECT_EQ(events[2]["sequence_number"], 2);
  EXPECT_EQ(events[2]["response"]["error"], (json{{"code", "queue_full"}, {"message", "full"}}));

  *responder_ = {};
  Exchange within = Make(true, 1, true, {}, asked);
  EXPECT_FALSE(within.Take(Event(0, "ab", true)));
  JobEvent failed = Event(0, "");
  failed.update.error = Unavailable("a rank is gone");
  EXPECT_TRUE(within.Take(failed));
  EXPECT_EQ(responder_->text.find("response.created", responder_->text.find("data: ") + 40),
            std::string::npos);
  EXPECT_THAT(responder_->text, HasSubstr("\"code\":\"service_unavailable_error\""));
  EXPECT_EQ(responder_->num_ends, 1);
}

TEST_F(ExchangeTest, AnErrorHasAStatusBeforeTheStreamAndIsAnEventWithinIt) {
  JobEvent failed = Event(0, "");
  failed.update.error = Unavailable("a rank is gone");
  Exchange before = Make(true);
  EXPECT_TRUE(before.Take(failed));
  EXPECT_EQ(responder_->status, 503);
  EXPECT_THAT(responder_->text, StartsWith("{\"error\":{\"message\":\"a rank is gone\""));

  *responder_ = {};
  Exchange within = Make(true);
  EXPECT_FALSE(within.Take(Event(0, "ab", true)));
  EXPECT_TRUE(within.Take(failed));
  EXPECT_THAT(responder_->text, HasSubstr("data: {\"error\""));
  EXPECT_FALSE(within.Take(Event(0, "more")));  // of a step that was under way
  EXPECT_EQ(responder_->num_ends, 1);
  // Telling it finds that the client has gone: that is no second end.
  within.Abandon();
  const std::string text = metrics_.Text("m", 0);
  EXPECT_EQ(Figure(text, "vllm:e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(Figure(text, "vllm:request_params_n_count"), 2);
}

TEST_F(ExchangeTest, AClientThatIsFoundGoneWhileItsEndIsSentCountsOnce) {
  Exchange exchange = Make(true);
  EXPECT_FALSE(exchange.Take(Event(0, "ab", true)));
  responder_->when_sent = [&] { exchange.Abandon(); };
  exchange.Take(Event(0, "c", false, engine::FinishReason::kStop));
  const std::string text = metrics_.Text("m", 0);
  EXPECT_EQ(Figure(text, "vllm:e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(Figure(text, "vllm:request_params_n_count"), 1);
}

TEST_F(ExchangeTest, SilentStreamsAreKeptAlive) {
  Exchange exchange = Make(true);
  constexpr std::chrono::hours kLong(1);
  constexpr Clock::duration kNone(0);
  exchange.KeepAlive(kLong, kNone);
  EXPECT_EQ(responder_->status, 0);  // no head either
  exchange.KeepAlive(kNone, kLong);
  EXPECT_EQ(responder_->status, 200);
  EXPECT_EQ(responder_->text, ": keep-alive\n\n");
  exchange.KeepAlive(kNone, kLong);
  EXPECT_EQ(responder_->text, ": keep-alive\n\n");
  exchange.KeepAlive(kLong, kNone);
  EXPECT_EQ(responder_->text, ": keep-alive\n\n: keep-alive\n\n");
}

}  // namespace
}  // namespace convene::server
