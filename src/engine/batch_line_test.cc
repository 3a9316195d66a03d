#include "engine/batch_line.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace convene::engine {
namespace {

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
  return line ? line->request.sampling : SamplingOptions();
}

TEST(BatchLine, NarrowingTheChoiceOfAGreedyModelSamples) {
  const SamplingOptions greedy = {.temperature = 0};
  EXPECT_EQ(SamplingOf("", greedy).temperature, 0);
  EXPECT_EQ(SamplingOf(R"("top_p": 0.5)", greedy).temperature, 1);
  EXPECT_EQ(SamplingOf(R"("top_k": 5)", greedy).top_k, 5);
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
  EXPECT_THAT(error(Line("a", R"("n": 2)")), HasSubstr("body.n is 2"));
  EXPECT_THAT(error(Line("a", R"("top_p": 2)")), HasSubstr("body.top_p must be a number from 0"));
  EXPECT_THAT(error(Line("a", R"("top_k": 1.5)")), HasSubstr("body.top_k must be an integer"));
  EXPECT_THAT(error(Line("a", R"("seed": "x")")), HasSubstr("body.seed"));
}

}  // namespace
}  // namespace convene::engine
