#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/access.h"
#include "server/request_log.h"

namespace convene::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, CountsIntoTheBucketsOfPrometheus) {
  Metrics metrics;
  metrics.TokenGap(0.01);  // a bound belongs to its bucket
  metrics.TokenGap(0.02);
  metrics.TokenGap(1000);
  metrics.FirstToken(0.5, 10, 4);
  for (int i = 0; i < 4; ++i) metrics.TokenOfAnswer();
  metrics.Ended({.finish = "stop",
                 .num_prompt_tokens = 10,
                 .num_generated_tokens = 5,
                 .prefill_s = 0.5,
                 .decode_s = 0.4});
  metrics.Ended({.finish = "abort", .num_prompt_tokens = 3});  // before its first token
  metrics.PromptEnded({.num_choices = 2, .most_generated_tokens = 5, .max_tokens = 16});
  metrics.PromptEnded({});  // with no limit said
  metrics.AfterStep(
      {.num_running = 2, .num_waiting = 1, .num_kv_blocks = 8, .num_held_kv_blocks = 2});
  const std::string text = metrics.Text("a \"b\"\n", 3);
  const std::string labels = R"({model_name="a \"b\"\n")";
  EXPECT_THAT(text,
              HasSubstr("vllm:inter_token_latency_seconds_bucket" + labels + ",le=\"0.01\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(",le=\"0.025\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(",le=\"80\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:inter_token_latency_seconds_bucket" + labels + ",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_waiting" + labels + "} 4\n"));
  EXPECT_THAT(text, HasSubstr("vllm:kv_cache_usage_perc" + labels + "} 0.25\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total" + labels + ",finished_reason=\"stop\"} 1\n"));
  // Tokens count when they come, what is known of a whole answer when it ends.
  EXPECT_THAT(text, HasSubstr("vllm:generation_tokens_total" + labels + "} 4\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total" + labels + "} 10\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_hits_total" + labels + "} 4\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_time_per_output_token_seconds_bucket" + labels +
                              ",le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_prefill_time_seconds_sum" + labels + "} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_inference_time_seconds_count" + labels + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_max_num_generation_tokens_sum" + labels + "} 5\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_n_sum" + labels + "} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_max_tokens_count" + labels + "} 1\n"));
}

TEST(Metrics, HavePagesWhereExpertsLieOnADisk) {
  Metrics metrics;
  metrics.AfterStep({.num_running = 1});
  EXPECT_THAT(metrics.Text("m", 0), Not(HasSubstr("expert_pages")));
  metrics.AfterStep({.pages = EngineState::Pages{.num_used = 7, .num_read = 3, .read_bytes = 96}});
  const std::string text = metrics.Text("m", 0);
  EXPECT_THAT(text, HasSubstr("convene:expert_pages_used_total{model_name=\"m\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("convene:expert_pages_read_total{model_name=\"m\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("convene:expert_read_bytes_total{model_name=\"m\"} 96\n"));
}

TEST(Access, KnowsKeysWithoutTellingThem) {
  const Access access({"abc", "def"}, {});
  EXPECT_EQ(access.ClientOf({.authorization = "Bearer def"}), "key 2");
  EXPECT_EQ(access.ClientOf({.authorization = "bearer abc"}), "key 1");
  for (const char* wrong : {"", "Bearer ", "Bearer ab", "Bearer abcd", "Basic abc", "abc"}) {
    EXPECT_FALSE(access.ClientOf({.authorization = wrong})) << wrong;
  }
  EXPECT_EQ(Access({}, {}).ClientOf({}), "");
}

TEST(Access, LetsOriginsReadThatWereNamed) {
  const Access one({}, {"https://a.example"});
  EXPECT_EQ(one.CorsHeaders({.origin = "https://a.example"}).size(), 3u);
  EXPECT_EQ(one.PreflightHeaders({.origin = "https://a.example"}, "POST").size(), 6u);
  EXPECT_TRUE(one.PreflightHeaders({.origin = "https://b.example"}, "POST").empty());
  EXPECT_TRUE(one.CorsHeaders({.origin = "https://b.example"}).empty());
  EXPECT_TRUE(one.CorsHeaders({}).empty());
  EXPECT_EQ(Access({}, {"*"}).CorsHeaders({.origin = "null"}).front().second, "*");
}

TEST(RequestLog, LinesAreOneLineEach) {
  const std::string line = LogLine(
      LogLevel::kWarning, {{"id", "a-1"}, {"empty", ""}, {"text", "two\nlines \x1b[2J \"q\""}});
  EXPECT_THAT(line, HasSubstr(" level=warning id=a-1 empty=\"\" "));
  EXPECT_THAT(line, EndsWith(R"(text="two\nlines \u001b[2J \"q\"")"));
  EXPECT_FALSE(RequestLog(LogLevel::kWarning).Shows(LogLevel::kInfo));
}

}  // namespace
}  // namespace convene::server
