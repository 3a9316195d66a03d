#include "openai/batch_line.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace convene::openai {
namespace {

using engine::SamplingOptions;
using ::testing::HasSubstr;

// A completion with further fields of the body, such as `"top_p": 0.5`.
std::string Line(const std::string& custom_id, const std::string& fields) {
  return fmt::format(
      R"({{"custom_id": "{}", "url": "/v1/completions", "body": {{"prompt": "x"{}{}}}}})",
      custom_id, fields.empty() ? "" : ", ", fields);
}

SamplingOptions SamplingOf(const std::string& fields, const SamplingOptions& defaults = {},
                           const std::string& custom_id = "a") {
  const Result<BatchLine> line = ParseBatchLine(Line(custom_id, fields), defaults);
  EXPECT_TRUE(line.ok()) << line.error().message;
  return line ? line->body.request.sampling : SamplingOptions();
}

TEST(BatchLine, SeedsComeFromTheCustomIdUnlessGiven) {
  EXPECT_EQ(SamplingOf("", {.seed = 1}, "a").seed, SeedOf("a"));
  EXPECT_EQ(SamplingOf(R"("seed": null)", {}, "a").seed, SeedOf("a"));
  EXPECT_NE(SamplingOf("", {}, "request-1").seed, SamplingOf("", {}, "request-2").seed);
  EXPECT_EQ(SamplingOf(R"("seed": 0)").seed, 0u);
  EXPECT_EQ(SamplingOf(R"("seed": 7)", {}, "b").seed, 7u);
  EXPECT_EQ(SamplingOf(R"("seed": 9223372036854775807)").seed, uint64_t{INT64_MAX});
  EXPECT_EQ(SamplingOf(R"("seed": -9223372036854775808)").seed, uint64_t{1} << 63);
}

// Results must stay reproducible from one version to the next.
TEST(BatchLine, SeedsAreThePublishedHash) {
  EXPECT_EQ(SeedOf(""), 0xcbf29ce484222325u);
  EXPECT_EQ(SeedOf("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(SeedOf("foobar"), 0x85944171f73967e8u);
}

TEST(BatchLine, NarrowingTheChoiceOfAGreedyModelSamples) {
  const SamplingOptions greedy = {.temperature = 0};
  EXPECT_EQ(SamplingOf("", greedy).temperature, 0);
  EXPECT_EQ(SamplingOf(R"("top_p": 0.5)", greedy).temperature, 1);
  EXPECT_EQ(SamplingOf(R"("top_k": 5)", greedy).top_k, 5);
  EXPECT_EQ(SamplingOf(R"("top_k": -1)", greedy).top_k, 0);
  EXPECT_EQ(SamplingOf(R"("temperature": 0, "top_p": 0.5)", greedy).temperature, 0);
}

TEST(BatchLine, WhatIsWrongIsNamed) {
  const auto error = [](const std::string& line) {
    const Result<BatchLine> parsed = ParseBatchLine(line, {});
    return parsed ? std::string("none") : parsed.error().message;
  };
  EXPECT_THAT(error("3"), HasSubstr("JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("custom_id"));
  EXPECT_THAT(error(Line("", "")), HasSubstr("custom_id"));
  EXPECT_THAT(error(Line("a", R"("max_tokens": 2, "max_completion_tokens": 3)")),
              HasSubstr("give one"));
  EXPECT_THAT(error(Line("a", R"("top_p": 2)")), HasSubstr("body.top_p must be a number from 0"));
  EXPECT_THAT(error(Line("a", R"("top_k": 1.5)")), HasSubstr("body.top_k must be an integer"));
  EXPECT_THAT(error(Line("a", R"("seed": "x")")), HasSubstr("body.seed"));
  EXPECT_THAT(error(Line("a", R"("seed": 9223372036854775808)")), HasSubstr("body.seed"));
  EXPECT_THAT(error(Line("a", R"("max_tokens": 2147483648)")), HasSubstr("body.max_tokens"));
  EXPECT_THAT(error(Line("a", R"("priority": 1)")),
              HasSubstr("body.priority is not supported; it must be absent or 0"));
  EXPECT_EQ(error(Line("a", R"("priority": 0)")), "none");
  EXPECT_THAT(error(R"({"custom_id": "a", "url": "/v1/chat/completions", "body": {
                       "messages": [{"role": "user"}], "tool_choice": "required"}})"),
              HasSubstr("body.tool_choice"));
}

}  // namespace
}  // namespace convene::openai
