// Large matrices are packed with little of what they are made of in memory.
#include "weights/pack_batch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "checkpoint/synthesize.h"
#include "weights/load_weights.h"
#include "weights/memory_mark_test.h"
#include "weights/pack_directory.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// The heap, page tables, and pages of two threads that are read at a time.
constexpr uint64_t kBesideBytes = 20 * kMiB;

// An embedding of 64 MiB, and little else.
constexpr const char* kLargeEmbedding = R"({"model_type": "mixtral", "hidden_size": 512,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 2, "vocab_size": 65536,
    "tie_word_embeddings": true})";

// An expert of 96 MiB, stored transposed.
constexpr const char* kLargeExpert = R"({"model_type": "gpt_oss", "hidden_size": 1024,
    "intermediate_size": 16384, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "num_local_experts": 1, "num_experts_per_tok": 1,
    "vocab_size": 256, "sliding_window": 128})";

class PackBatchTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / fmt::format("pack_batch_{}", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  checkpoint::Checkpoint Write(const char* config) const {
    std::ofstream(root_ / "source.json") << config;
    const std::string model = (root_ / "model").string();
    const auto written = checkpoint::Synthesize((root_ / "source.json").string(), model, {}, {});
    CHECK(written.ok(), "{}", written.error().message);
    auto opened = checkpoint::Checkpoint::Open(model);
    CHECK(opened.ok(), "{}", opened.error().message);
    return *std::move(opened);
  }

  fs::path root_;
  hardware::ThreadPool pool_{{0, 0}};
};

TEST_F(PackBatchTest, LoadingAddsLittleToTheWeightsThatAreLoaded) {
  const checkpoint::Checkpoint checkpoint = Write(kLargeEmbedding);
  const WeightFormats formats{.matrices = kernels::WeightFormat::kInt8};
  const uint64_t size_bytes = PackedSizeBytes(checkpoint.spec(), formats);
  ASSERT_GT(size_bytes, 60 * kMiB);
  memory::Ledger ledger;
  const MemoryMark mark;
  if (!mark.is_set()) GTEST_SKIP() << "the most memory of a process is not known here";
  const auto weights =
      LoadWeights(checkpoint, formats, {}, hardware::NumaPolicy::kAuto, pool_, ledger, {});
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_LT(mark.added_bytes(), size_bytes + kBesideBytes);
  EXPECT_EQ(ledger.reserved()[memory::Use::kStaging], 0u);
}

TEST_F(PackBatchTest, ADirectoryIsPackedWithLittleBesideItsLargestPage) {
  const checkpoint::Checkpoint checkpoint = Write(kLargeEmbedding);
  memory::Ledger ledger;
  const MemoryMark mark;
  if (!mark.is_set()) GTEST_SKIP() << "the most memory of a process is not known here";
  const auto packed = PackDirectory(checkpoint, {.matrices = kernels::WeightFormat::kInt8},
                                    {.directory = (root_ / "packed").string()}, pool_, ledger, {});
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_LT(mark.added_bytes(), 64 * kMiB + kBesideBytes);
}

TEST_F(PackBatchTest, MatricesThatAreStoredTransposedGoThroughASmallBuffer) {
  const checkpoint::Checkpoint checkpoint = Write(kLargeExpert);
  const WeightFormats formats{.matrices = kernels::WeightFormat::kInt8};
  const uint64_t size_bytes = PackedSizeBytes(checkpoint.spec(), formats);
  ASSERT_GT(size_bytes, 48 * kMiB);
  memory::Ledger ledger({.budget_bytes = size_bytes + 64 * kMiB, .limited_by = "the test"});
  const MemoryMark mark;
  if (!mark.is_set()) GTEST_SKIP() << "the most memory of a process is not known here";
  const auto weights =
      LoadWeights(checkpoint, formats, {}, hardware::NumaPolicy::kAuto, pool_, ledger, {});
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_LT(mark.added_bytes(), size_bytes + kBesideBytes);
}

// An edit reads matrices whole, and packs its copies.
TEST_F(PackBatchTest, RowsThatAreGatheredInPartsAreThoseThatAreReadWhole) {
  for (const char* name : {"dbrx_plain", "gpt_oss_plain"}) {
    const auto checkpoint = checkpoint::Checkpoint::Open(
        std::string(CONVENE_SOURCE_DIR "/tests/golden/models/") + name);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    for (const auto format : {kernels::WeightFormat::kF32, kernels::WeightFormat::kBf16,
                              kernels::WeightFormat::kInt8, kernels::WeightFormat::kInt4}) {
      SCOPED_TRACE(fmt::format("{} {}", name, kernels::Name(format)));
      const WeightFormats formats{.matrices = format};
      const auto load = [&](uint64_t left_bytes, const MatrixEdit& edit, memory::Ledger& ledger) {
        auto weights = LoadWeights(*checkpoint, formats, {}, hardware::NumaPolicy::kAuto, pool_,
                                   ledger, {}, edit);
        CHECK(weights.ok(), "{} with {} left", weights.error().message, left_bytes);
        return *std::move(weights);
      };
      memory::Ledger roomy;
      const ModelWeights whole = load(
          0, [](model::TensorRole, int, std::vector<float>&) {}, roomy);
      // For one group of rows at a time, and no more.
      constexpr uint64_t kLeftBytes = uint64_t{8} << 10;
      memory::Ledger tight(
          {.budget_bytes = PackedSizeBytes(checkpoint->spec(), formats) + kLeftBytes,
           .limited_by = "the test"});
      const ModelWeights gathered = load(kLeftBytes, {}, tight);
      EXPECT_TRUE(std::ranges::equal(gathered.bytes, whole.bytes));
    }
  }
}

}  // namespace
}  // namespace convene::weights
