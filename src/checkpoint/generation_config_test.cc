#include "checkpoint/generation_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace convene::checkpoint {
namespace {

Result<GenerationConfig> Read(const char* generation, const char* config = "{}") {
  return ReadGenerationConfig(nlohmann::json::parse(generation), nlohmann::json::parse(config));
}

TEST(GenerationConfig, ReadsWhatQwen3Ships) {
  const auto config = Read(R"({"bos_token_id": 151643, "do_sample": true,
      "eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6, "top_k": 20,
      "top_p": 0.95, "transformers_version": "4.51.0"})");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->eos_token_ids, (std::vector<int>{151645, 151643}));
  EXPECT_EQ(config->bos_token_id, 151643);
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_FALSE(config->min_p);
  EXPECT_FALSE(config->repetition_penalty);
  EXPECT_FALSE(config->max_new_tokens);
}

TEST(GenerationConfig, ReadsTheOtherFields) {
  const auto config = Read(R"({"eos_token_id": 2, "min_p": 0.05, "repetition_penalty": 1.1,
                               "max_new_tokens": 100, "do_sample": false})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->eos_token_ids, std::vector<int>{2});
  EXPECT_EQ(config->min_p, 0.05);
  EXPECT_EQ(config->repetition_penalty, 1.1);
  EXPECT_EQ(config->max_new_tokens, 100);
  EXPECT_EQ(config->do_sample, false);
}

TEST(GenerationConfig, TakesTokensFromTheModelsConfigWhereItsOwnFileIsSilent) {
  const auto config =
      Read(R"({"eos_token_id": null})", R"({"eos_token_id": 7, "bos_token_id": 1})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->eos_token_ids, std::vector<int>{7});
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_TRUE(Read("{}")->eos_token_ids.empty());
}

TEST(GenerationConfig, RefusesBadValues) {
  EXPECT_EQ(Read(R"({"temperature": -1})").error().message,
            "temperature is -1, but must be a number from 0 to 100");
  for (const char* text :
       {R"({"eos_token_id": "2"})", R"({"eos_token_id": [1, -1]})", R"({"top_p": 1.5})",
        R"({"top_k": 0.5})", R"({"do_sample": 1})", R"({"repetition_penalty": 0})", "[]"}) {
    EXPECT_FALSE(Read(text)) << text;
  }
}

}  // namespace
}  // namespace convene::checkpoint
