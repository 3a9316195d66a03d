#include "server/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  void Send(const std::string& data) override { text += data; }
  void EndStream() override { ++num_ends; }
  void WhenGone(std::function<void()>) override {}

  int status = 0;
  std::string text;
  int num_ends = 0;
};

class ExchangeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer =
        new Result<text::Tokenizer>(text::Tokenizer::Load(CONVENE_SOURCE_DIR "/models/demo"));
    ASSERT_TRUE(tokenizer->ok());
  }
  static void TearDownTestSuite() { delete tokenizer; }

  Exchange Make(bool streams, int num_answers = 1, bool is_chat = true) {
    openai::GenerationBody body;
    body.is_chat = is_chat;
    body.streams = streams;
    body.streams_usage = streams;
    body.num_answers = num_answers;
    return Exchange(responder_, body, {.id = "chatcmpl-1", .created = 7, .model = "m"},
                    std::vector<size_t>(static_cast<size_t>(num_answers), 70), {}, Clock::now(),
                    **tokenizer, metrics_);
  }

  static JobEvent Event(int choice_idx, const std::string& text, bool is_first = false,
                        std::optional<engine::FinishReason> finish = {}) {
    JobEvent event{.job = 1, .choice_idx = choice_idx, .when = Clock::now(), .is_first = is_first};
    event.submission = event.when;
    event.update.text = text;
    event.update.token.token = 36;
    event.update.finish = finish;
    event.update.num_reused_tokens = 64;
    return event;
  }

  static inline Result<text::Tokenizer>* tokenizer = nullptr;
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

TEST_F(ExchangeTest, StreamsBeginWithARoleAndEndWithReasonUsageAndDone) {
  Exchange exchange = Make(true);
  EXPECT_FALSE(exchange.Take(Event(0, "", true)));  // nothing that may be shown yet
  EXPECT_FALSE(exchange.Take(Event(0, "ab")));
  EXPECT_TRUE(exchange.Take(Event(0, "", false, engine::FinishReason::kStop)));
  std::vector<std::string> events;
  size_t at = 0;
  while (at < responder_->text.size()) {
    const size_t end = responder_->text.find("\n\n", at);
    events.push_back(responder_->text.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"], (json{{"content", "ab"}}));
  EXPECT_EQ(json::parse(events[2])["choices"][0]["delta"], json::object());
  EXPECT_EQ(json::parse(events[2])["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(json::parse(events[3])["choices"].empty());
  EXPECT_EQ(events[4], "[DONE]");
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
}

TEST_F(ExchangeTest, SilentStreamsAreKeptAlive) {
  Exchange exchange = Make(true);
  exchange.KeepAlive(std::chrono::hours(1));
  EXPECT_EQ(responder_->text, "");
  exchange.KeepAlive(Clock::duration(0));
  EXPECT_EQ(responder_->text, ": keep-alive\n\n");
}

}  // namespace
}  // namespace convene::server
