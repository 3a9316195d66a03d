#include "cli/describe_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/family.h"

namespace convene::cli {
namespace {

std::string Described(const std::string& config) {
  const auto spec = model::ModelSpecFromConfig(nlohmann::json::parse(config));
  CHECK(spec.ok(), "{}", spec.error().message);
  std::string text;
  for (const auto& [name, phrase] : DescribeModel(*spec)) text += name + ": " + phrase + "\n";
  return text;
}

TEST(DescribeModel, TellsOfLatentsGroupsAndSigmoids) {
  const std::string config(R"({"model_type": "deepseek_v3", "rope_scaling": {"type": "yarn",
      "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 4096}})");
  EXPECT_EQ(
      Described(config),
      "family: deepseek_v3\n"
      "layers: 61, 58 with experts after 3 dense\n"
      "hidden size: 7,168\n"
      "vocabulary: 129,280\n"
      "context: 163,840 tokens\n"
      "attention: 128 heads of 128 + 64 rotated, values of 128, from latents\n"
      "latents: 512 for keys and values, 1,536 for queries; cached are 512 + 64 per token and "
      "layer\n"
      "experts: 256 of width 2,048, 8 per token of 4 of 8 expert groups, chosen with a bias per "
      "expert, weights by sigmoid sum to 2.5\n"
      "shared expert: width 2,048\n"
      "dense FFN: width 18,432\n"
      "norm: RMSNorm, epsilon 1e-06\n"
      "RoPE: base 10,000, YaRN by 40 from 4,096 tokens, scores times 1.874\n");
}

TEST(DescribeModel, TellsOfAnEncoderAndOfPositionsByDistance) {
  const std::string config(R"({"model_type": "switch_transformers", "num_layers": 6,
      "encoder_sparse_step": 2, "decoder_sparse_step": 1})");
  EXPECT_EQ(Described(config),
            "family: switch_transformers\n"
            "encoder: 6, 3 with experts and 3 dense\n"
            "decoder: 12, all with experts\n"
            "hidden size: 768\n"
            "vocabulary: 32,128, head tied to it\n"
            "context: any length\n"
            "attention: 12 heads of 64, keys and values of their own, scores not scaled\n"
            "experts: 8 of width 2,048, 1 per token, weighted by probability, ReLU without a gate\n"
            "dense FFN: width 2,048, ReLU without a gate\n"
            "norm: RMSNorm, epsilon 1e-06\n"
            "scales: logits times 0.03608\n"
            "positions: a bias by distance in 32 buckets, one of them from 128 tokens on\n");
}

TEST(DescribeModel, TellsOfSinksAndMultipliers) {
  const std::string gpt_oss(R"({"model_type": "gpt_oss", "num_hidden_layers": 5})");
  const std::string text = Described(gpt_oss);
  EXPECT_NE(text.find("share 8 of keys and values, biases, sinks\n"), std::string::npos) << text;
  EXPECT_NE(text.find("window: 128 tokens in 3 of 5 layers\n"), std::string::npos) << text;
  EXPECT_NE(text.find("SwiGLU clamped at 7, biases\n"), std::string::npos) << text;
  const std::string granite(R"({"model_type": "granitemoe", "attention_multiplier": 0.015625,
                               "residual_multiplier": 0.22})");
  const std::string scaled = Described(granite);
  EXPECT_NE(scaled.find("scores times 0.01562\n"), std::string::npos) << scaled;
  EXPECT_NE(scaled.find("scales: residuals times 0.22\n"), std::string::npos) << scaled;
}

TEST(DescribeModel, SumsUpLayersThatDiffer) {
  const std::string config(R"({"model_type": "qwen2_moe", "num_hidden_layers": 5,
      "mlp_only_layers": [0, 3], "use_sliding_window": true, "sliding_window": 1024,
      "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}})");
  const std::string text = Described(config);
  EXPECT_EQ(text,
            "family: qwen2_moe\n"
            "layers: 5, 3 with experts and 2 dense\n"
            "hidden size: 2,048\n"
            "vocabulary: 151,936\n"
            "context: 131,072 tokens\n"
            "attention: 16 heads of 128, keys and values of their own, biases\n"
            "window: 1,024 tokens in 3 of 5 layers\n"
            "experts: 60 of width 1,408, 4 per token, weighted by probability\n"
            "shared expert: width 5,632, gated\n"
            "dense FFN: width 5,632\n"
            "norm: RMSNorm, epsilon 1e-06\n"
            "RoPE: base 10,000, YaRN by 4 from 32,768 tokens\n");
}

}  // namespace
}  // namespace convene::cli
