#include "evaluate/inspection.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/pack_directory.h"

namespace convene::evaluate {
namespace {

namespace fs = std::filesystem;
using kernels::WeightFormat;
using runtime::DefaultFormats;

const std::string kGolden = std::string(CONVENE_SOURCE_DIR) + "/tests/golden/models/";

// A bare configuration in a file of its own.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(fs::path(testing::TempDir()) / fmt::format("inspection_{}.json", getpid())) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { fs::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(InspectModel, ReckonsMemoryFromABareConfiguration) {
  const ConfigFile config(R"({"model_type": "olmoe", "intermediate_size": 1024})");
  const auto bf16 = InspectModel(config.path(), 4096, DefaultFormats(WeightFormat::kBf16));
  ASSERT_TRUE(bf16) << bf16.error().message;
  EXPECT_FALSE(bf16->stored);
  EXPECT_EQ(bf16->kv_token_bytes(), 16u * 2 * 2048 * 2);
  EXPECT_EQ(bf16->memory.context, 4096);
  EXPECT_GE(bf16->memory.kv_bytes(), 4096 * bf16->kv_token_bytes());
  EXPECT_NEAR(static_cast<double>(bf16->memory.weights_bytes()), 2.0 * 6'919'161'856, 1e8);

  const auto f32 = InspectModel(config.path(), 4096, DefaultFormats(WeightFormat::kF32));
  ASSERT_TRUE(f32);
  EXPECT_GT(f32->memory.weights_bytes(), 1.9 * static_cast<double>(bf16->memory.weights_bytes()));
  // Twice, but for the router, which is float32 in both.
  EXPECT_LT(f32->decode_weight_bytes(), 2 * bf16->decode_weight_bytes());
  EXPECT_GT(100 * f32->decode_weight_bytes(), 195 * bf16->decode_weight_bytes());
}

TEST(InspectModel, NeedsNoMachineThatTheModelFits) {
  const ConfigFile config(R"({"model_type": "mixtral", "num_hidden_layers": 1000})");
  const auto inspection = InspectModel(config.path(), {}, DefaultFormats(WeightFormat::kBf16));
  ASSERT_TRUE(inspection) << inspection.error().message;
  EXPECT_GT(inspection->memory.needed_bytes(), uint64_t{2} << 40);
}

TEST(InspectModel, ChecksTheWeightsOfADirectory) {
  const auto inspection =
      InspectModel(kGolden + "mixtral_plain", {}, DefaultFormats(WeightFormat::kBf16));
  ASSERT_TRUE(inspection) << inspection.error().message;
  ASSERT_TRUE(inspection->stored);
  EXPECT_EQ(inspection->stored->num_files, 3);
  EXPECT_EQ(inspection->stored->dtypes.size(), 1u);
}

TEST(InspectModel, SaysWhatAPackedDirectoryHolds) {
  const fs::path packed = fs::path(testing::TempDir()) / fmt::format("packed_{}", getpid());
  fs::remove_all(packed);
  const auto checkpoint = checkpoint::Checkpoint::Open(kGolden + "mixtral_plain");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  ASSERT_TRUE(weights::PackDirectory(*checkpoint, {.matrices = WeightFormat::kInt4},
                                     {.directory = packed.string()}, pool, ledger, {}));
  const auto inspection = InspectModel(packed.string(), {}, DefaultFormats(WeightFormat::kInt4));
  ASSERT_TRUE(inspection) << inspection.error().message;
  ASSERT_TRUE(inspection->stored);
  EXPECT_EQ(inspection->stored->num_files, 1);
  EXPECT_EQ(inspection->stored->size_bytes, fs::file_size(packed / "convene.safetensors"));
  EXPECT_EQ(inspection->stored->dtypes, std::set<std::string>{"int4"});
  fs::remove_all(packed);
}

// As in a run, the weights say whether a head that the configuration ties is one of its own.
TEST(SpecAsLoaded, IsUntiedByAStoredHeadThatDiffers) {
  const fs::path root = fs::path(testing::TempDir()) / fmt::format("untied_{}", getpid());
  fs::remove_all(root);
  const fs::path model = root / "model";
  fs::create_directories(root);
  fs::copy(kGolden + "olmoe_plain", model);
  const auto config = checkpoint::ReadConfigFile(model.string());
  ASSERT_TRUE(config) << config.error().message;
  nlohmann::json tied = config->json;
  tied["tie_word_embeddings"] = true;
  std::ofstream(model / "config.json") << tied;
  ASSERT_TRUE(checkpoint::OpenConfig(model.string())->tied_embeddings);
  const auto stored = SpecAsLoaded(model.string());
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_FALSE(stored->tied_embeddings);

  const auto checkpoint = checkpoint::Checkpoint::Open(model.string());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  ASSERT_TRUE(weights::PackDirectory(*checkpoint, {.matrices = WeightFormat::kInt8},
                                     {.directory = (root / "packed").string()}, pool, ledger, {}));
  EXPECT_FALSE(SpecAsLoaded((root / "packed").string())->tied_embeddings);
  EXPECT_FALSE(InspectModel((root / "packed").string(), {}, DefaultFormats(WeightFormat::kInt8))
                   ->spec.tied_embeddings);
  // Without weights the configuration has to do.
  EXPECT_TRUE(SpecAsLoaded((model / "config.json").string())->tied_embeddings);
  fs::remove_all(root);
}

TEST(InspectModel, SaysWhatIsWrong) {
  EXPECT_FALSE(InspectModel("/no/such/model", {}, DefaultFormats(WeightFormat::kBf16)));
  const ConfigFile config(R"({"model_type": "mixtral", "num_attention_heads": 0})");
  const auto inspection = InspectModel(config.path(), {}, DefaultFormats(WeightFormat::kBf16));
  ASSERT_FALSE(inspection);
  EXPECT_EQ(inspection.error().message,
            config.path() + ": num_attention_heads is 0, but must be an integer from 1 to 4096");
}

TEST(InspectModel, GivesItsFiguresAsJson) {
  const ConfigFile config(R"({"model_type": "qwen2_moe", "mlp_only_layers": [0]})");
  const auto inspection = InspectModel(config.path(), 100, DefaultFormats(WeightFormat::kBf16));
  ASSERT_TRUE(inspection);
  const nlohmann::ordered_json json = ToJson(*inspection);
  int64_t sum = 0;
  for (const auto& [kind, count] : json.at("parameters").items()) sum += count.get<int64_t>();
  EXPECT_EQ(json.at("parameters_total"), sum);
  EXPECT_EQ(json.at("parameters").at("shared_experts"), 23 * (3 * 2048 * 5632 + 2048));
  EXPECT_EQ(json.at("bytes").at("dense_ffn"), 2 * 3 * 2048 * 5632);
  EXPECT_EQ(json.at("memory").at("context"), 100);
  EXPECT_EQ(json.at("experts"), 60);
  double flops = 0;
  for (const FlopsPart& part : kFlopsParts) {
    flops += json.at("flops_of_last_token").at(part.key).get<double>();
  }
  EXPECT_DOUBLE_EQ(json.at("flops_of_last_token").at("total"), flops);
  EXPECT_FALSE(json.contains("stored"));
}

TEST(InspectModel, CountsTheCacheOfLatents) {
  const ConfigFile config(R"({"model_type": "deepseek_v3"})");
  const auto inspection = InspectModel(config.path(), 4096, DefaultFormats(WeightFormat::kBf16));
  ASSERT_TRUE(inspection) << inspection.error().message;
  EXPECT_EQ(inspection->kv_token_bytes(), 61u * (512 + 64) * 2);
  const nlohmann::ordered_json json = ToJson(*inspection);
  EXPECT_EQ(json.at("memory").at("kv_bytes_per_token"), 61 * (512 + 64) * 2);
  EXPECT_EQ(json.at("latent").at("kv_rank"), 512);
  EXPECT_FALSE(json.contains("kv_heads"));
  EXPECT_EQ(json.at("sparse_layers"), 58);
  EXPECT_EQ(json.at("groups_per_token"), 4);
  EXPECT_EQ(json.at("router"), "sigmoid");
  EXPECT_EQ(json.at("absorbed_score_flops_of_last_token"), 61.0 * 128 * 2 * (576 + 512) * 4096);
}

TEST(InspectModel, TellsBothStacksApart) {
  const ConfigFile config(R"({"model_type": "switch_transformers", "num_experts": 16})");
  const auto inspection = InspectModel(config.path(), 512, DefaultFormats(WeightFormat::kBf16));
  ASSERT_TRUE(inspection) << inspection.error().message;
  const nlohmann::ordered_json json = ToJson(*inspection);
  EXPECT_EQ(json.at("encoder_layers"), 12);
  EXPECT_EQ(json.at("encoder_sparse_layers"), 3);
  const int64_t per_token = 12 * 2 * 768 * 2;
  EXPECT_EQ(json.at("memory").at("kv_bytes_per_token"), per_token);
  EXPECT_EQ(json.at("memory").at("kv_bytes_per_input_token"), per_token);
  EXPECT_EQ(json.at("memory").at("kv_bytes"), 2 * 512 * per_token) << "an input and an answer";
  EXPECT_GT(json.at("flops_per_input_token").at("experts"), 0);
  EXPECT_EQ(json.at("flops_per_input_token").at("head"), 0);
  EXPECT_LT(json.at("encoder_parameters_total"), json.at("parameters_total"));
}

}  // namespace
}  // namespace convene::evaluate
