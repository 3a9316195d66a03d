#include "model/rope_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace convene::model {
namespace {

Result<RopeSpec> RopeOf(const char* text, int head_dim = 64) {
  const nlohmann::json config = nlohmann::json::parse(text);
  std::optional<Error> first_error;
  ConfigFields fields(config, first_error);
  const RopeSpec rope =
      ReadRope(fields, {.theta = 10000, .head_dim = head_dim, .max_positions = 4096});
  if (first_error) return *first_error;
  return rope;
}

TEST(RopeConfig, WithoutFieldsUsesTheFamilysDefault) {
  const auto rope = RopeOf("{}");
  ASSERT_TRUE(rope);
  EXPECT_EQ(rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(rope->theta, 10000);
  EXPECT_EQ(rope->rotary_dim, 64);
}

TEST(RopeConfig, ReadsTheOldAndTheNewSpellingAlike) {
  const auto before =
      RopeOf(R"({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}})");
  const auto after =
      RopeOf(R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}})");
  for (const auto* rope : {&before, &after}) {
    ASSERT_TRUE(*rope);
    EXPECT_EQ((*rope)->scaling, RopeScaling::kLinear);
    EXPECT_EQ((*rope)->theta, 5e5);
    EXPECT_EQ((*rope)->factor, 2);
  }
}

TEST(RopeConfig, RopeScalingReplacesRopeParametersUnlessEmpty) {
  const char* both = R"({"rope_parameters": {"rope_type": "linear", "factor": 2},
                         "rope_scaling": {"rope_type": "dynamic", "factor": 3}})";
  EXPECT_EQ(RopeOf(both)->scaling, RopeScaling::kDynamic);
  const char* empty = R"({"rope_parameters": {"rope_type": "linear", "factor": 2},
                          "rope_scaling": {}})";
  EXPECT_EQ(RopeOf(empty)->scaling, RopeScaling::kLinear);
  const char* null = R"({"rope_parameters": {"rope_type": "linear", "factor": 2},
                         "rope_scaling": null})";
  EXPECT_EQ(RopeOf(null)->scaling, RopeScaling::kLinear);
}

TEST(RopeConfig, ThetaInTheParametersWinsOverTheTopLevel) {
  EXPECT_EQ(RopeOf(R"({"rope_theta": 2e4, "rope_parameters": {"rope_theta": 3e4}})")->theta, 3e4);
  EXPECT_EQ(RopeOf(R"({"rope_theta": 2e4, "rope_parameters": {"rope_type": "default"}})")->theta,
            2e4);
}

TEST(RopeConfig, YarnInfersItsAttentionFactor) {
  EXPECT_DOUBLE_EQ(RopeOf(R"({"rope_scaling": {"type": "yarn", "factor": 4.0}})")->attention_factor,
                   1.1386294361119891);
  const char* magnitudes = R"({"rope_scaling": {"type": "yarn", "factor": 40.0, "mscale": 0.707,
                               "mscale_all_dim": 1.3}})";
  EXPECT_DOUBLE_EQ(RopeOf(magnitudes)->attention_factor, 0.85215105161318516);
  const char* given = R"({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.0}})";
  EXPECT_EQ(RopeOf(given)->attention_factor, 1.0);
}

TEST(RopeConfig, YarnTakesNullAndZeroAsDefaults) {
  const char* text = R"({"rope_scaling": {"type": "yarn", "factor": null, "beta_fast": 0,
                         "beta_slow": null, "original_max_position_embeddings": 1024}})";
  const auto rope = RopeOf(text);
  ASSERT_TRUE(rope);
  EXPECT_EQ(rope->factor, 4);
  EXPECT_EQ(rope->beta_fast, 32);
  EXPECT_EQ(rope->beta_slow, 1);
  EXPECT_TRUE(rope->truncate);
  EXPECT_EQ(rope->original_max_positions, 1024);
}

TEST(RopeConfig, TheOriginalContextAtTheTopLevelWins) {
  const char* both = R"({"original_max_position_embeddings": 512, "rope_scaling": {
      "type": "yarn", "factor": 2, "original_max_position_embeddings": 1024}})";
  EXPECT_EQ(RopeOf(both)->original_max_positions, 512);
  const char* none = R"({"rope_scaling": {"type": "yarn", "factor": 2}})";
  EXPECT_EQ(RopeOf(none)->original_max_positions, 4096);
}

TEST(RopeConfig, Llama3NeedsAllItsFields) {
  const auto rope = RopeOf(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})");
  ASSERT_TRUE(rope);
  EXPECT_EQ(rope->high_frequency_factor, 4);
  EXPECT_EQ(rope->original_max_positions, 8192);

  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 4, "high_freq_factor": 4}})"));
}

TEST(RopeConfig, NamesTheUnknownScaling) {
  const auto rope = RopeOf(R"({"rope_scaling": {"rope_type": "longrope", "factor": 8}})");
  ASSERT_FALSE(rope);
  EXPECT_EQ(rope.error().message,
            "the RoPE scaling \"longrope\" is not supported; it can be default, linear, dynamic, "
            "yarn or llama3");
}

TEST(RopeConfig, RefusesWhatCannotBeComputed) {
  EXPECT_FALSE(RopeOf(R"({"rope_theta": 0})"));
  EXPECT_FALSE(RopeOf(R"({"rope_theta": "big"})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "linear"}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "yarn"}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "yarn", "beta_fast": 16}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": 0}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0.5}})"));
  EXPECT_TRUE(RopeOf(R"({"rope_scaling": {"type": "yarn", "factor": 2, "beta_slow": 32}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"rope_type": null, "factor": 4}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"rope_type": null, "type": "linear", "factor": 4}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_parameters": {"type": null, "factor": 4}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "dynamic", "factor": 0.5}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", 2));
  EXPECT_FALSE(RopeOf(R"({"partial_rotary_factor": 0.5,
                        "rope_scaling": {"type": "linear", "factor": 2}})"));
  EXPECT_FALSE(RopeOf(R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})"));
}

TEST(RopeConfig, ScalingStretchesTheDeclaredContext) {
  EXPECT_EQ(DeclaredContext({}, 4096), 4096);
  EXPECT_EQ(DeclaredContext({.scaling = RopeScaling::kDynamic, .factor = 2.5}, 100), 250);
  const RopeSpec yarn = {
      .scaling = RopeScaling::kYarn, .factor = 4, .original_max_positions = 32768};
  EXPECT_EQ(DeclaredContext(yarn, 40960), 131072);
  EXPECT_EQ(DeclaredContext(yarn, 200000), 200000);
  EXPECT_EQ(DeclaredContext({.scaling = RopeScaling::kLinear, .factor = 1e6}, 1 << 27), 1 << 27);
}

}  // namespace
}  // namespace convene::model
