#include "engine/page_directory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace convene::engine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class PageDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / fmt::format("page_directory_{}", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_ / "pages");
    fs::copy(CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain", root_ / "model");
    options_.page_directory = (root_ / "pages").string();
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Pages(kernels::WeightFormat format = kernels::WeightFormat::kInt8,
                    const std::string& model = "model") const {
    const auto checkpoint = checkpoint::Checkpoint::Open((root_ / model).string());
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    return PagesOf(options_, *checkpoint, {.matrices = format});
  }

  // As if the model had been packed there.
  static void Fill(const std::string& pages) {
    fs::create_directory(pages);
    std::ofstream(fs::path(pages) / "convene.safetensors") << std::string(3000, 'x');
  }

  void ChangeModel() const {
    const fs::path weights = root_ / "model/model.safetensors";
    fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  }

  fs::path root_;
  LoadOptions options_;
};

TEST_F(PageDirectoryTest, ACheckpointHasItsPagesUntilItsFilesChange) {
  const std::string before = Pages();
  EXPECT_EQ(Pages(), before);
  EXPECT_THAT(fs::path(before).filename().string(), testing::StartsWith("model-"));
  EXPECT_NE(Pages(kernels::WeightFormat::kBf16), before);
  // Another path to it is no other checkpoint, another directory of the same name is.
  fs::create_symlink(root_ / "model", root_ / "link");
  EXPECT_EQ(Pages(kernels::WeightFormat::kInt8, "link"), before);
  fs::create_directory(root_ / "other");
  fs::copy(root_ / "model", root_ / "other/model");
  EXPECT_NE(Pages(kernels::WeightFormat::kInt8, "other/model"), before);
  ChangeModel();
  EXPECT_NE(Pages(), before);
}

TEST_F(PageDirectoryTest, TellsWhichPagesNobodyReadsAnyMore) {
  const std::string old_int8 = Pages();
  const std::string old_bf16 = Pages(kernels::WeightFormat::kBf16);
  Fill(old_int8);
  EXPECT_EQ(DescribeStalePages(old_int8), "");
  EXPECT_EQ(DescribeStalePages(old_bf16), "") << "two formats of one checkpoint";
  Fill(old_bf16);
  ChangeModel();
  const std::string now = Pages();
  const std::string stale = DescribeStalePages(now);
  EXPECT_THAT(stale, HasSubstr(old_int8 + " (2.93 KiB)"));
  EXPECT_THAT(stale, HasSubstr(old_bf16 + " (2.93 KiB)"));
  EXPECT_THAT(stale, testing::StartsWith("5.86 KiB of the disk can be had back"));
  EXPECT_TRUE(fs::exists(old_int8)) << "it is for the user to remove them";
  // Another checkpoint's, and what somebody packs just now.
  fs::create_directory(root_ / "other");
  fs::copy(root_ / "model", root_ / "other/model");
  EXPECT_EQ(DescribeStalePages(Pages(kernels::WeightFormat::kInt8, "other/model")), "");
  std::ofstream(old_bf16 + ".lock") << "";
  EXPECT_THAT(DescribeStalePages(now), Not(HasSubstr(old_bf16)));
  EXPECT_EQ(DescribeStalePages("pages/of_another_kind"), "");
}

}  // namespace
}  // namespace convene::engine
