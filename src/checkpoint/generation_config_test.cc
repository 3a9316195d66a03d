#include "checkpoint/generation_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace convene::checkpoint {
namespace {

// Without a generation_config.json where `generation` is null.
Result<GenerationConfig> Read(const char* generation, const char* config = "{}") {
  const auto parsed = nlohmann::json::parse(generation ? generation : "null");
  return ReadGenerationConfig(generation ? &parsed : nullptr, nlohmann::json::parse(config));
}

TEST(GenerationConfig, ReadsWhatQwen3Ships) {
  const auto config = Read(R"({"bos_token_id": 151643, "do_sample": true,
      "eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6, "top_k": 20,
      "top_p": 0.95, "transformers_version": "4.51.0"})");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->eos_token_ids, (std::vector<int>{151645, 151643}));
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
  const auto config = Read(R"({"eos_token_id": null})", R"({"eos_token_id": 7})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->eos_token_ids, std::vector<int>{7});
  EXPECT_TRUE(Read("{}")->eos_token_ids.empty());
}

TEST(GenerationConfig, TakesAllFromTheModelsConfigWhereItIsTheOnlyOne) {
  const char* config = R"({"do_sample": true, "top_k": 7, "num_beams": 4})";
  const auto alone = Read(nullptr, config);
  ASSERT_TRUE(alone);
  EXPECT_TRUE(alone->is_from_model_config);
  EXPECT_EQ(alone->do_sample, true);
  EXPECT_EQ(alone->top_k, 7);
  EXPECT_EQ(alone->unknown, std::vector<std::string>{"num_beams=4"});
  for (const char* generation : {R"({"temperature": 0.5})", "{}"}) {
    const auto beside = Read(generation, config);
    ASSERT_TRUE(beside);
    EXPECT_FALSE(beside->is_from_model_config);
    EXPECT_FALSE(beside->do_sample || beside->top_k);
    EXPECT_TRUE(beside->unknown.empty());
  }
}

TEST(GenerationConfig, NamesWhatItDoesNotKnowAndWouldChangeTheText) {
  const auto config = Read(R"({"num_beams": 4, "typical_p": 0.9, "forced_bos_token_id": 0,
      "suppress_tokens": [1, 2], "stop_strings": "end", "bad_words_ids": [[1000], [2000], [3000],
      [4000], [5000], [6000]], "token_healing": true, "sequence_bias": [[[1, 2], -5.0]]})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->unknown, (std::vector<std::string>{
                                 "num_beams=4", "typical_p=0.9", "stop_strings=\"end\"",
                                 "bad_words_ids", "suppress_tokens=[1,2]", "forced_bos_token_id=0",
                                 "sequence_bias=[[[1,2],-5.0]]", "token_healing=true"}));
}

TEST(GenerationConfig, IsSilentAboutValuesThatChangeNothing) {
  const auto config = Read(R"({"num_beams": 1, "num_beam_groups": 1.0, "penalty_alpha": 0,
      "min_length": 0, "min_new_tokens": null, "typical_p": 1.0, "epsilon_cutoff": 0.0,
      "no_repeat_ngram_size": 0, "suppress_tokens": [], "forced_eos_token_id": null,
      "token_healing": false, "guidance_scale": 1, "sequence_bias": {},
      "early_stopping": true, "use_cache": true, "max_length": 4096, "pad_token_id": 3})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->unknown, std::vector<std::string>{});
}

TEST(GenerationConfig, DoesNotReadWhatNothingAsksFor) {
  EXPECT_TRUE(Read(R"({"bos_token_id": -1})", R"({"bos_token_id": "none"})"));
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
