// Checkpoints that are packed page by page, and go on where an earlier call ended. That what is
// packed is what LoadWeights packs is tested in packed_directory_test.cc.
#include "weights/pack_directory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "hardware/thread_pool.h"
#include "weights/packed_directory.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;

std::string ContentOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PackDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / fmt::format("pack_directory_{}", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
    auto checkpoint = checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/models/demo");
    ASSERT_TRUE(checkpoint.ok());
    checkpoint_.emplace(*std::move(checkpoint));
  }
  void TearDown() override { fs::remove_all(root_); }

  Result<uint64_t> Pack(const std::string& name, bool resumes, const LoadProgress& progress = {},
                        kernels::WeightFormat format = kernels::WeightFormat::kInt8) {
    return PackDirectory(*checkpoint_, {.matrices = format},
                         {.directory = (root_ / name).string(), .resumes = resumes}, pool_, ledger_,
                         progress);
  }

  fs::path root_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  hardware::ThreadPool pool_{{0}};
  // So little that the model is packed in several parts.
  memory::Ledger ledger_{memory::Tier{.budget_bytes = 16 * kMib, .limited_by = "a test"}};
};

TEST_F(PackDirectoryTest, GoesOnWhereItWasKilled) {
  uint64_t first_bytes = 0;  // done when the copy was made
  int num_parts = 0;
  const auto whole =
      Pack("whole", /*resumes=*/true, [&](uint64_t done_bytes, uint64_t total_bytes) {
        // As a kill at this moment leaves it.
        if (++num_parts == 1) {
          first_bytes = done_bytes;
          EXPECT_LT(done_bytes, total_bytes);
          fs::copy(root_ / "whole", root_ / "killed");
        }
      });
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_GT(num_parts, 1);
  EXPECT_FALSE(IsPackedDirectory((root_ / "killed").string()));
  // What was being noted has no end.
  std::ofstream(root_ / "killed/convene.part", std::ios::app) << "0123456789abcdef 01";
  uint64_t first_of_rest = 0;
  const auto rest = Pack("killed", /*resumes=*/true, [&](uint64_t done_bytes, uint64_t) {
    if (first_of_rest == 0) first_of_rest = done_bytes;
  });
  ASSERT_TRUE(rest) << rest.error().message;
  EXPECT_GT(first_of_rest, first_bytes) << "the first part was not packed again";
  EXPECT_TRUE(ContentOf(root_ / "killed/convene.safetensors") ==
              ContentOf(root_ / "whole/convene.safetensors"));
  EXPECT_FALSE(fs::exists(root_ / "killed/convene.part"));
  EXPECT_TRUE(OpenPackedDirectory((root_ / "killed").string()));
}

TEST_F(PackDirectoryTest, BeginsAnewWhereTheNotesAreOfSomethingElse) {
  const auto as_int8 = Pack("pages", /*resumes=*/true, [&](uint64_t, uint64_t) {
    if (!fs::exists(root_ / "killed")) fs::copy(root_ / "pages", root_ / "killed");
  });
  ASSERT_TRUE(as_int8) << as_int8.error().message;
  const auto as_int4 = Pack("killed", /*resumes=*/true, {}, kernels::WeightFormat::kInt4);
  ASSERT_TRUE(as_int4) << as_int4.error().message;
  const auto opened = OpenPackedDirectory((root_ / "killed").string());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->formats.matrices, kernels::WeightFormat::kInt4);
  EXPECT_TRUE(VerifyPacked(*opened, {}, pool_, {}));
}

// Pages have copies of configurations, by which they run.
TEST_F(PackDirectoryTest, OfAnotherConfigurationAreOtherPages) {
  fs::copy(checkpoint_->directory(), root_ / "model");
  const auto source = [&] {
    const auto model = checkpoint::Checkpoint::Open((root_ / "model").string());
    CHECK(model.ok(), "{}", model.error().message);
    return SourceOfPages(*model);
  };
  const std::string before = source();
  EXPECT_EQ(source(), before);
  std::ofstream(root_ / "model/generation_config.json") << R"({"temperature": 0.25})";
  EXPECT_NE(source(), before);
}

TEST_F(PackDirectoryTest, CopiesTheTemplateForToolsToo) {
  const fs::path model = root_ / "model";
  fs::copy(checkpoint_->directory(), model);
  fs::create_directory(model / "additional_chat_templates");
  std::ofstream(model / "additional_chat_templates/tool_use.jinja") << "for tools";
  auto opened = checkpoint::Checkpoint::Open(model.string());
  ASSERT_TRUE(opened) << opened.error().message;
  checkpoint_.emplace(*std::move(opened));
  for (const bool resumes : {false, true}) {
    const std::string name = resumes ? "pages" : "packed";
    const auto packed = Pack(name, resumes);
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_EQ(ContentOf(root_ / name / "additional_chat_templates/tool_use.jinja"), "for tools");
    EXPECT_EQ(ContentOf(root_ / name / "config.json"), ContentOf(model / "config.json"));
  }
}

// Files may have so many bytes while it exists; as on a full disk, what is beyond fails.
class LimitedFiles {
 public:
  explicit LimitedFiles(rlim_t most_bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = most_bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LimitedFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  LimitedFiles(const LimitedFiles&) = delete;
  LimitedFiles& operator=(const LimitedFiles&) = delete;

 private:
  rlimit before_ = {};
};

TEST_F(PackDirectoryTest, AFullDiskIsAnErrorThatLosesNothing) {
  std::optional<LimitedFiles> full(std::in_place, rlim_t{1} << 20);
  const auto none = Pack("pages", /*resumes=*/true);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_THAT(none.error().message, HasSubstr("cannot reserve"));
  EXPECT_THAT(none.error().message, HasSubstr("choose another directory"));
  full.reset();
  uint64_t first_bytes = 0;
  const auto part = Pack("pages", /*resumes=*/true, [&](uint64_t done_bytes, uint64_t) {
    if (first_bytes == 0) first_bytes = done_bytes;
    full.emplace(rlim_t{1} << 12);
  });
  full.reset();
  ASSERT_FALSE(part);
  EXPECT_THAT(part.error().message, HasSubstr("what is packed stays"));
  EXPECT_FALSE(IsPackedDirectory((root_ / "pages").string()));
  uint64_t first_of_rest = 0;
  const auto rest = Pack("pages", /*resumes=*/true, [&](uint64_t done_bytes, uint64_t) {
    if (first_of_rest == 0) first_of_rest = done_bytes;
  });
  ASSERT_TRUE(rest) << rest.error().message;
  EXPECT_GT(first_of_rest, first_bytes);
  const auto opened = OpenPackedDirectory((root_ / "pages").string());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_TRUE(VerifyPacked(*opened, {}, pool_, {}));
}

TEST_F(PackDirectoryTest, IsGoneWhereItCannotBeComplete) {
  memory::Ledger little(memory::Tier{.budget_bytes = 1000, .limited_by = "a test"});
  const std::string directory = (root_ / "none").string();
  const auto packed = PackDirectory(*checkpoint_, {.matrices = kernels::WeightFormat::kInt8},
                                    {.directory = directory}, pool_, little, {});
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_FALSE(fs::exists(directory));
}

}  // namespace
}  // namespace convene::weights
