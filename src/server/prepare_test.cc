#include "server/prepare.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "openai/api_error.h"

namespace convene::server {
namespace {

using openai::ApiError;
using ::testing::HasSubstr;

class PrepareTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ =
        new Result<text::Tokenizer>(text::Tokenizer::Load(CONVENE_SOURCE_DIR "/models/demo"));
    ASSERT_TRUE(tokenizer_->ok());
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  void SetUp() override {
    model_.tokenizer = &**tokenizer_;
    model_.context = 1 << 16;
    model_.check = [this](const engine::Request& request) -> Status {
      ++num_checked_;
      if (std::ssize(request.prompt) < model_.context) return {};
      return Error{"the prompt is too long"};
    };
  }

  std::variant<PreparedRequest, ApiError> Prepare(const std::string& body) const {
    return PrepareGeneration(model_, body, Api::kCompletions, 7, /*keeps_prompt=*/false);
  }
  // The field that is at fault; empty: the request is taken.
  std::string Refused(const std::string& body) const {
    const auto prepared = Prepare(body);
    const auto* error = std::get_if<ApiError>(&prepared);
    return error != nullptr ? error->param.value_or("none") : "";
  }

  static inline Result<text::Tokenizer>* tokenizer_ = nullptr;
  ServedModel model_{.name = "m", .chat_template = Error{"there is none"}};
  int num_checked_ = 0;
};

TEST_F(PrepareTest, ChoicesHaveThePromptAndSeedsOneAfterTheOther) {
  const auto prepared = Prepare(R"({"prompt": [[1, 2], [3]], "n": 2})");
  ASSERT_TRUE(std::holds_alternative<PreparedRequest>(prepared));
  const auto& request = std::get<PreparedRequest>(prepared);
  ASSERT_EQ(request.choices.size(), 4u);
  EXPECT_EQ(request.choices[1].prompt, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(request.choices[2].prompt, (std::vector<int32_t>{3}));
  EXPECT_EQ(request.choices[3].sampling.seed, 8u);
  EXPECT_EQ(request.prompt_sizes, (std::vector<size_t>{2, 2, 1, 1}));
}

// So that what is too long is not there as often as answers are wanted before it is refused.
TEST_F(PrepareTest, APromptIsCheckedBeforeItIsCopiedForItsAnswers) {
  EXPECT_EQ(Refused(R"({"prompt": [[1, 2], [3]], "n": 128})"), "");
  EXPECT_EQ(num_checked_, 2);
  model_.context = 2;
  EXPECT_EQ(Refused(R"({"prompt": [[1], [1, 2]], "n": 128})"), "prompt");
}

TEST_F(PrepareTest, TheLogProbabilitiesOfAWholeAnswerAreBounded) {
  const auto body = [](int n, int max_tokens, const char* more) {
    return fmt::format(R"({{"prompt": [[1], [2]], "n": {}, "max_tokens": {}{}}})", n, max_tokens,
                       more);
  };
  EXPECT_EQ(Refused(body(128, 1000, "")), "");
  EXPECT_EQ(Refused(body(128, 1000, R"(, "logprobs": 0)")), "");
  EXPECT_EQ(Refused(body(128, 1000, R"(, "logprobs": 20, "stream": true)")), "");
  EXPECT_EQ(Refused(body(1, 20'000, R"(, "logprobs": 20)")), "");
  const auto refused = Prepare(body(128, 1000, R"(, "logprobs": 20)"));
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  const auto& error = std::get<ApiError>(refused);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "logprobs");
  EXPECT_THAT(error.message, HasSubstr("256000 tokens with 21 log probabilities each"));
  EXPECT_THAT(error.message, HasSubstr("lower max_tokens, n or logprobs, or set stream"));
  // No more tokens than the context holds.
  EXPECT_EQ(Refused(body(1, 1'000'000, R"(, "logprobs": 6)")), "");
  EXPECT_EQ(Refused(body(1, 1'000'000, R"(, "logprobs": 9)")), "logprobs");
}

}  // namespace
}  // namespace convene::server
