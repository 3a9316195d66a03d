#include "weights/compared_bytes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "strategy/layout.h"
#include "weights/load_weights.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;

const std::string kGoldenToCompare = CONVENE_SOURCE_DIR "/tests/golden/models/";

using Digests = std::map<std::string, uint64_t>;

Digests DigestsOf(const checkpoint::Checkpoint& checkpoint, const Share& share) {
  hardware::ThreadPool pool({0});
  std::vector<NamedDigest> compared;
  memory::Ledger ledger;
  const auto weights = LoadWeights(checkpoint, {.matrices = kernels::WeightFormat::kF32}, share,
                                   hardware::NumaPolicy::kAuto, pool, ledger, {}, {}, &compared);
  CHECK(weights.ok(), "{}", weights.error().message);
  Digests digests;
  for (const NamedDigest& named : compared) {
    EXPECT_TRUE(digests.emplace(named.name, named.digest).second) << named.name << " twice";
  }
  return digests;
}

checkpoint::Checkpoint Open(const std::string& directory) {
  auto checkpoint = checkpoint::Checkpoint::Open(directory);
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  return *std::move(checkpoint);
}

// Of a fixture with families' particular tensors: latents, FP8 and its scales, MXFP4, fused ones.
class ComparedBytesTest : public testing::TestWithParam<const char*> {
 protected:
  ComparedBytesTest()
      : copy_(fs::path(testing::TempDir()) / fmt::format("compared_{}_{}", GetParam(), getpid())) {
    fs::remove_all(copy_);
    fs::copy(kGoldenToCompare + GetParam(), copy_);
  }
  ~ComparedBytesTest() override { fs::remove_all(copy_); }

  // Changes a bit in the middle of a stored tensor of the copy.
  void Flip(const std::string& tensor) const {
    for (const fs::directory_entry& entry : fs::directory_iterator(copy_)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::string bytes(std::istreambuf_iterator<char>(in), {});
      const auto stored =
          checkpoint::ParseSafetensors(std::as_bytes(std::span(bytes)), bytes.size());
      CHECK(stored.ok(), "{}", entry.path().string());
      for (const checkpoint::StoredTensor& one : *stored) {
        if (one.name == tensor) bytes[one.offset + one.size_bytes / 2] ^= 4;
      }
      std::ofstream(entry.path(), std::ios::binary) << bytes;
    }
  }

  fs::path copy_;
};

TEST_P(ComparedBytesTest, AreTheSameOnRanksThatReadTheSame) {
  const checkpoint::Checkpoint checkpoint = Open(kGoldenToCompare + GetParam());
  const strategy::Layout data_parallel{1, 2, 2, 1};
  const Digests first = DigestsOf(checkpoint, ShareOf(data_parallel, 0));
  const Digests second = DigestsOf(checkpoint, ShareOf(data_parallel, 1));
  size_t num_common = 0;
  for (const auto& [name, digest] : second) {
    const auto found = first.find(name);
    if (found == first.end()) continue;
    EXPECT_EQ(found->second, digest) << name;
    ++num_common;
  }
  // Rank 0 has the head besides, where it is a tensor of its own.
  EXPECT_EQ(num_common, second.size());
  EXPECT_LE(first.size(), second.size() + 1);
}

// Each stored tensor but those of routed experts and the head.
TEST_P(ComparedBytesTest, AFlippedBitOfWhatBothReadChangesThatDigestAlone) {
  const checkpoint::Checkpoint original = Open(kGoldenToCompare + GetParam());
  const Share share = ShareOf(strategy::Layout{1, 2, 2, 1}, 1);
  const Digests expected = DigestsOf(original, share);
  std::set<std::string> names;
  for (const model::TensorBinding& tensor : original.spec().tensors) {
    if (tensor.expert >= 0 || tensor.role == model::TensorRole::kHead) continue;
    for (const checkpoint::StoredPart& part : checkpoint::PartsOf(tensor)) names.insert(part.name);
  }
  ASSERT_GT(names.size(), 10);
  for (const std::string& name : names) {
    Flip(name);
    const Digests found = DigestsOf(Open(copy_.string()), share);
    Flip(name);
    ASSERT_EQ(found.size(), expected.size());
    std::vector<std::string> changed;
    for (const auto& [other, digest] : found) {
      if (expected.at(other) != digest) changed.push_back(other);
    }
    ASSERT_EQ(changed.size(), 1) << name;
    EXPECT_TRUE(changed[0].starts_with(name)) << changed[0] << " for " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ComparedBytesTest,
                         testing::Values("mixtral_plain", "qwen2_many", "olmoe_plain",
                                         "deepseek_v2_groups", "deepseek_v3_fp8", "gpt_oss_mxfp4",
                                         "dbrx_plain", "switch_untied"),
                         [](const auto& of) { return of.param; });

TEST(ComparedBytes, PartsOfHeadsAreComparedWithThoseThatHaveTheSame) {
  const checkpoint::Checkpoint checkpoint = Open(kGoldenToCompare + "olmoe_plain");
  const strategy::Layout layout{2, 2, 4, 1};  // ranks 0 and 2 have the same heads
  std::vector<Digests> digests;
  for (int rank = 0; rank < 4; ++rank) {
    digests.push_back(DigestsOf(checkpoint, ShareOf(layout, rank)));
  }
  const auto common_parts = [&](int a, int b) {
    int count = 0;
    for (const auto& [name, digest] : digests[a]) {
      if (name.find("q_proj.weight, bytes ") == std::string::npos) continue;
      const auto found = digests[b].find(name);
      if (found == digests[b].end()) continue;
      EXPECT_EQ(found->second, digest);
      ++count;
    }
    return count;
  };
  EXPECT_EQ(common_parts(0, 2), 2);  // one per layer
  EXPECT_EQ(common_parts(1, 3), 2);
  EXPECT_EQ(common_parts(0, 1), 0);
}

}  // namespace
}  // namespace convene::weights
