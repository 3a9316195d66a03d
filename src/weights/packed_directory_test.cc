#include "weights/packed_directory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hardware/thread_pool.h"
#include "weights/load_weights.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kGolden = CONVENE_SOURCE_DIR "/tests/golden/models/";

class PackedDirectoryTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("packed_{}_{}", GetParam(), getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  // A fixture packed into `target()`.
  ModelWeights Write(const WeightFormats& formats) {
    const std::string source = kGolden + GetParam();
    auto checkpoint = checkpoint::Checkpoint::Open(source);
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    hardware::ThreadPool pool({0});
    auto weights = LoadWeights(*checkpoint, formats, hardware::NumaPolicy::kAuto, pool, {});
    CHECK(weights.ok(), "{}", weights.error().message);
    const Status written = WritePackedDirectory(*weights, source, target());
    CHECK(written.ok(), "{}", written.error().message);
    return *std::move(weights);
  }
  std::string target() const { return (directory_ / "packed").string(); }

  void ExpectRefused(const std::string& message) {
    const auto opened = OpenPackedDirectory(target());
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr(message));
  }

  fs::path directory_;
};

TEST_P(PackedDirectoryTest, MapsWhatWasPacked) {
  using kernels::WeightFormat;
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    fs::remove_all(target());
    const ModelWeights expected = Write({.matrices = format, .group = 64});
    ASSERT_TRUE(IsPackedDirectory(target()));
    auto opened = OpenPackedDirectory(target());
    ASSERT_TRUE(opened) << opened.error().message;
    const ModelWeights mapped = MapWeights(*std::move(opened));
    EXPECT_EQ(mapped.formats.matrices, format);
    ASSERT_EQ(mapped.bytes.size(), expected.bytes.size());
    EXPECT_TRUE(std::equal(mapped.bytes.begin(), mapped.bytes.end(), expected.bytes.begin()));
    EXPECT_EQ(mapped.final_norm, expected.final_norm);
    for (size_t i = 0; i < expected.layers.size(); ++i) {
      EXPECT_EQ(mapped.layers[i].attention_norm, expected.layers[i].attention_norm);
      EXPECT_EQ(mapped.layers[i].qkv_bias, expected.layers[i].qkv_bias);
      EXPECT_EQ(mapped.layers[i].query_norm, expected.layers[i].query_norm);
      EXPECT_EQ(mapped.layers[i].key_norm, expected.layers[i].key_norm);
      EXPECT_EQ(mapped.layers[i].output_bias, expected.layers[i].output_bias);
      EXPECT_EQ(mapped.layers[i].ffn_norm, expected.layers[i].ffn_norm);
    }
  }
}

TEST_P(PackedDirectoryTest, RefusesFilesThatDoNotFitTheModel) {
  Write({.matrices = kernels::WeightFormat::kInt4});
  const auto rewrite = [&](const std::string& text) {
    std::ofstream(target() + "/convene.json") << text;
  };
  rewrite(R"({"version": 2, "weights": "int8", "group": 32, "tied_embeddings": false})");
  ExpectRefused("should be");
  rewrite(R"({"version": 2, "weights": "int4", "group": 128, "tied_embeddings": false})");
  ExpectRefused("should be");
  rewrite(R"({"version": 1, "weights": "int4", "group": 32, "tied_embeddings": false})");
  ExpectRefused("version 1");
  rewrite(R"({"version": 2, "weights": "int3", "group": 32, "tied_embeddings": false})");
  ExpectRefused("int3");
  rewrite(R"({"version": 2, "weights": "int4", "group": 0, "tied_embeddings": false})");
  ExpectRefused("groups of 0");
  rewrite(R"({"version": 2, "weights": 4})");
  ExpectRefused("weights (a name)");
  rewrite("[");
  ExpectRefused("convene.json");
}

TEST_P(PackedDirectoryTest, RefusesACutFileAndAMissingOne) {
  Write({.matrices = kernels::WeightFormat::kInt8});
  const std::string path = target() + "/convene.safetensors";
  const auto size = fs::file_size(path);
  for (const uint64_t cut : {size - 1, size / 2, uint64_t{100}, uint64_t{7}}) {
    fs::resize_file(path, cut);
    EXPECT_FALSE(OpenPackedDirectory(target())) << cut;
  }
  fs::remove(path);
  ExpectRefused("convene.safetensors");
}

TEST_P(PackedDirectoryTest, NeverWritesOverAnything) {
  const ModelWeights weights = Write({.matrices = kernels::WeightFormat::kInt8});
  const Status again = WritePackedDirectory(weights, kGolden + GetParam(), target());
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("not an empty directory"));
  EXPECT_TRUE(OpenPackedDirectory(target()));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PackedDirectoryTest,
                         testing::Values("mixtral_plain", "qwen2_many", "olmoe_plain",
                                         "dbrx_plain"));

}  // namespace
}  // namespace convene::weights
