#include "weights/place_packed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/cached_share_test.h"
#include "hardware/huge_buffer.h"
#include "hardware/huge_pages.h"
#include "hardware/memory_status.h"
#include "weights/load_weights.h"
#include "weights/named_weights.h"
#include "weights/pack_directory.h"
#include "weights/packed_directory.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using hardware::NumaPolicy;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::string kGoldenToPlace = CONVENE_SOURCE_DIR "/tests/golden/models/";
const std::string kDemo = CONVENE_SOURCE_DIR "/models/demo";

class PlacePackedTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("place_packed_{}", getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string target() const { return (directory_ / "packed").string(); }
  std::string file() const { return target() + "/convene.safetensors"; }

  void Write(const std::string& source, kernels::WeightFormat format) {
    fs::remove_all(target());
    const auto checkpoint = checkpoint::Checkpoint::Open(source);
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    memory::Ledger ledger;
    const auto written = PackDirectory(*checkpoint, {.matrices = format}, {.directory = target()},
                                       pool_, ledger, {});
    CHECK(written.ok(), "{}", written.error().message);
  }

  ModelWeights Map(const Share& share = {}) {
    auto opened = OpenPackedDirectory(target());
    CHECK(opened.ok(), "{}", opened.error().message);
    auto mapped = MapWeights(*std::move(opened), ledger_, share);
    CHECK(mapped.ok(), "{}", mapped.error().message);
    return *std::move(mapped);
  }

  uint64_t reserved_bytes() const { return ledger_.reserved()[memory::Use::kWeights]; }

  fs::path directory_;
  hardware::ThreadPool pool_{{0, 0}};
  memory::Ledger ledger_;
};

void ExpectSameMatrices(const ModelWeights& weights, const ModelWeights& expected) {
  const auto found = Matrices(weights);
  const auto wanted = Matrices(expected);
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].name, wanted[i].name);
    const kernels::PackedMatrix& matrix = *found[i].matrix;
    ASSERT_EQ(matrix.size_bytes(), wanted[i].matrix->size_bytes()) << found[i].name;
    EXPECT_TRUE(std::equal(matrix.data, matrix.data + matrix.size_bytes(), wanted[i].matrix->data))
        << found[i].name;
  }
}

TEST_F(PlacePackedTest, ACopyHasTheSameBitsAndLetsGoOfTheFile) {
  for (const char* model : {"olmoe_plain", "deepseek_v3_fp8", "gpt_oss_mxfp4", "granitemoe_plain",
                            "switch_plain", "switch_untied"}) {
    Write(kGoldenToPlace + model, kernels::WeightFormat::kInt8);
    for (const Share& share : {Share{}, Share{.expert_share = 1, .expert_shares = 2, .head = {}}}) {
      SCOPED_TRACE(fmt::format("{}, share {}", model, share.expert_share));
      const ModelWeights expected = Map(share);
      ModelWeights copy = Map(share);
      const uint64_t size_bytes = copy.storage.size_bytes();
      EXPECT_TRUE(copy.storage.bytes().empty());
      copy.storage = {};
      const Status copied = CopyToMemory(copy, NumaPolicy::kAuto, pool_, ledger_, {});
      ASSERT_TRUE(copied) << copied.error().message;
      EXPECT_FALSE(copy.mapped);
      ASSERT_EQ(copy.storage.bytes().size(), size_bytes);
      EXPECT_EQ(reserved_bytes(), 2 * size_bytes);
      ExpectSameMatrices(copy, expected);
      const auto is_inside = [&](const kernels::PackedMatrix& matrix) {
        return matrix.data >= copy.bytes.data() &&
               matrix.data + matrix.size_bytes() <= copy.bytes.data() + copy.bytes.size();
      };
      for (const NamedMatrix& named : Matrices(copy)) {
        EXPECT_TRUE(is_inside(*named.matrix)) << named.name;
      }
      // These may be one with another, and are not in the list then.
      EXPECT_TRUE(is_inside(copy.embedding));
      if (copy.encoder) {
        EXPECT_TRUE(is_inside(copy.encoder->embedding));
      }
    }
    EXPECT_EQ(reserved_bytes(), 0u);
  }
}

TEST_F(PlacePackedTest, ACopyIsNotInMemoryBesideTheMappedFile) {
  Write(kDemo, kernels::WeightFormat::kF32);
  ModelWeights weights = Map();
  weights.storage = {};
  const uint64_t size_bytes = weights.bytes.size();
  ASSERT_GT(size_bytes, uint64_t{20} << 20);
  const uint64_t before = hardware::ReadResidentMemory().file_bytes;
  for (const std::span<const std::byte> run : MappedRuns(weights)) {
    ASSERT_TRUE(weights.mapped->Populate(run));
  }
  if (hardware::ReadResidentMemory().file_bytes < before + size_bytes / 2) {
    GTEST_SKIP() << "pages of mapped files are not told from others here";
  }
  uint64_t most_bytes = 0;
  const Status copied =
      CopyToMemory(weights, NumaPolicy::kAuto, pool_, ledger_, [&](uint64_t, uint64_t) {
        most_bytes = std::max(most_bytes, hardware::ReadResidentMemory().file_bytes);
      });
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_GT(most_bytes, 0u);
  EXPECT_LT(most_bytes, before + size_bytes / 4);
}

TEST_F(PlacePackedTest, AFileThatIsCutReplacedOrWrittenToIsAnErrorAndNoCrash) {
  struct Damage {
    std::function<void(const std::string& path)> make;
    const char* message;
  };
  const std::vector<Damage> damages = {
      {[](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); }, "was cut"},
      {[](const std::string& path) {
         fs::copy_file(path, path + "_new");
         fs::rename(path + "_new", path);
       },
       "was replaced"},
      {[](const std::string& path) {
         fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
       },
       "was written to"},
  };
  for (const Damage& damage : damages) {
    Write(kDemo, kernels::WeightFormat::kInt8);
    ModelWeights mapped = Map();
    mapped.storage = {};
    damage.make(file());
    const Status copied = CopyToMemory(mapped, NumaPolicy::kAuto, pool_, ledger_, {});
    ASSERT_FALSE(copied) << damage.message;
    EXPECT_EQ(copied.error().kind, ErrorKind::kDataLoss);
    EXPECT_THAT(copied.error().message, HasSubstr(file() + " " + damage.message));
    EXPECT_TRUE(mapped.mapped);
    EXPECT_EQ(reserved_bytes(), 0u);
  }
}

TEST_F(PlacePackedTest, PlacingAFileThatIsCutIsAnErrorAndNoCrash) {
  Write(kDemo, kernels::WeightFormat::kInt8);
  ModelWeights mapped = Map();
  fs::resize_file(file(), fs::file_size(file()) / 2);
  const auto placed = PlacePacked(std::move(mapped), NumaPolicy::kAuto, pool_, ledger_, {});
  ASSERT_FALSE(placed);
  EXPECT_EQ(placed.error().kind, ErrorKind::kDataLoss);
  EXPECT_THAT(placed.error().message, HasSubstr(file() + " was cut"));
}

TEST_F(PlacePackedTest, PlacedWeightsAreTheSameAndReservedOnce) {
  // /dev/shm is a tmpfs, whose files some kernels move into huge pages on request.
  for (const char* parent : {"", "/dev/shm"}) {
    if (*parent != 0 && access(parent, W_OK) != 0) continue;
    const fs::path before = directory_;
    if (*parent != 0) directory_ = fs::path(parent) / fmt::format("place_packed_{}", getpid());
    fs::create_directories(directory_);
    Write(kDemo, kernels::WeightFormat::kInt8);
    const ModelWeights expected = Map();
    ModelWeights mapped = Map();
    const uint64_t size_bytes = mapped.storage.size_bytes();
    const size_t buffers = hardware::HugeBuffer::total_bytes();
    uint64_t last_bytes = 0;
    const auto progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
      EXPECT_GE(total_bytes, size_bytes);  // mapped ones with the zeros between pages
      if (done_bytes == total_bytes) last_bytes = std::min(done_bytes, size_bytes);
    };
    const auto placed = PlacePacked(std::move(mapped), NumaPolicy::kAuto, pool_, ledger_, progress);
    ASSERT_TRUE(placed) << placed.error().message;
    const PackedPlacement& placement = placed->placement;
    EXPECT_EQ(placement.size_bytes, size_bytes);
    EXPECT_EQ(last_bytes, size_bytes);
    ExpectSameMatrices(placed->weights, expected);
    EXPECT_EQ(reserved_bytes(), 2 * size_bytes);
    EXPECT_EQ(placed->weights.mapped.has_value(), !placement.is_copied);
    EXPECT_EQ(hardware::HugeBuffer::total_bytes() - buffers, placement.is_copied ? size_bytes : 0);
    EXPECT_EQ(placement.reason.empty(), !placement.is_copied) << placement.reason;
    fs::remove_all(directory_);
    directory_ = before;
  }
}

// Whatever this system does: as on one that maps all of a file in huge pages, and as on one that
// maps nothing so.
TEST_F(PlacePackedTest, WhatTheSystemMapsInHugePagesStaysMappedAndNothingElse) {
  Write(kDemo, kernels::WeightFormat::kInt8);
  const ModelWeights expected = Map();
  int counts = 0;
  const auto all = [&](std::span<const std::byte> bytes) -> uint64_t {
    return counts++ == 0 ? 0 : bytes.size();  // before anything is read there are none
  };
  uint64_t read_bytes = 0;
  const auto mapped = PlacePacked(
      Map(), NumaPolicy::kAuto, pool_, ledger_,
      [&](uint64_t done_bytes, uint64_t) { read_bytes = done_bytes; }, all);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_FALSE(mapped->placement.is_copied);
  EXPECT_TRUE(mapped->weights.mapped);
  EXPECT_EQ(mapped->placement.huge_bytes, mapped->placement.size_bytes);
  EXPECT_EQ(mapped->placement.reason, "");
  EXPECT_GE(read_bytes, mapped->placement.size_bytes) << "not all of it was read into memory";
  ExpectSameMatrices(mapped->weights, expected);

  const auto none = [](std::span<const std::byte>) -> uint64_t { return 0; };
  const auto copied = PlacePacked(Map(), NumaPolicy::kAuto, pool_, ledger_, {}, none);
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_TRUE(copied->placement.is_copied);
  EXPECT_FALSE(copied->weights.mapped);
  EXPECT_THAT(copied->placement.reason, AnyOf(HasSubstr("does not map this file in huge pages"),
                                              HasSubstr("does not let go")));
  ExpectSameMatrices(copied->weights, expected);
}

// What a system does of itself with a file, for tests of those that do.
class SystemMapsHugePages : public PlacePackedTest {
 protected:
  // Of a file that was not in memory, or on request of one that is. Of a file system in memory
  // nothing else than the latter can be tried.
  bool CanMap(const fs::path& directory, bool on_request) const {
    const fs::path path = directory / "probe";
    std::ofstream(path) << std::string(3 * hardware::kHugePageBytes, 'x');
    if (!on_request && !DropFromCache(path)) return false;
    const auto file = checkpoint::MappedFile::Open(path.string());
    CHECK(file.ok(), "{}", file.error().message);
    checkpoint::AskForHugePages(file->bytes());
    CHECK(file->Populate(file->bytes()).ok());
    const auto past = reinterpret_cast<uintptr_t>(file->bytes().data()) % hardware::kHugePageBytes;
    const size_t first = past == 0 ? 0 : hardware::kHugePageBytes - past;
    if (on_request) {
      checkpoint::CollapseToHugePages(file->bytes().subspan(first, hardware::kHugePageBytes));
    }
    return hardware::HugePageBytes(file->bytes()) >= hardware::kHugePageBytes;
  }

  // All of it but what is in the last huge page of the file, which the file does not fill.
  void ExpectInHugePages(const checkpoint::MappedFile& file, const PopulatedPages& populated) {
    EXPECT_GT(populated.huge_bytes + hardware::kHugePageBytes, file.bytes().size());
    EXPECT_THAT(populated.why_small, AnyOf("", HasSubstr("ends within a huge page")));
  }

  PopulatedPages Populate(const ModelWeights& weights) {
    const auto populated = PopulateInHugePages(*weights.mapped, MappedRuns(weights), pool_, {});
    CHECK(populated.ok(), "{}", populated.error().message);
    return *populated;
  }

  // Into the page cache, in pages of 4 KiB.
  void ReadInSmallPages() const {
    const int descriptor = open(file().c_str(), O_RDONLY);
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);  // no more than is asked for
    std::vector<char> page(4096);
    off_t at = 0;
    while (pread(descriptor, page.data(), page.size(), at) > 0) at += 4096;
    close(descriptor);
  }
};

TEST_F(SystemMapsHugePages, OfAFileThatWasJustPacked) {
  if (!CanMap(directory_, /*on_request=*/false)) GTEST_SKIP() << "not of files in " << directory_;
  Write(kDemo, kernels::WeightFormat::kF32);
  EXPECT_EQ(CachedShare(file()), 0) << "packing left pages, whose sizes it does not choose";
  const ModelWeights weights = Map();
  ExpectInHugePages(*weights.mapped, Populate(weights));
}

TEST_F(SystemMapsHugePages, OfAFileThatSomethingHasReadInSmallOnes) {
  if (!CanMap(directory_, /*on_request=*/false)) GTEST_SKIP() << "not of files in " << directory_;
  Write(kDemo, kernels::WeightFormat::kF32);
  ReadInSmallPages();
  {
    const ModelWeights weights = Map();
    ASSERT_TRUE(weights.mapped->Populate(weights.mapped->bytes()));
    ASSERT_EQ(hardware::HugePageBytes(weights.mapped->bytes()), 0u);
  }
  const ModelWeights weights = Map();
  ExpectInHugePages(*weights.mapped, Populate(weights));
}

TEST_F(SystemMapsHugePages, ButNotWhereAnotherProcessHasSmallOnesMapped) {
  if (!CanMap(directory_, /*on_request=*/false)) GTEST_SKIP() << "not of files in " << directory_;
  Write(kDemo, kernels::WeightFormat::kF32);
  ReadInSmallPages();
  const ModelWeights other = Map();
  ASSERT_TRUE(other.mapped->Populate(other.mapped->bytes()));
  const auto placed = PlacePacked(Map(), NumaPolicy::kAuto, pool_, ledger_, {});
  ASSERT_TRUE(placed) << placed.error().message;
  EXPECT_TRUE(placed->placement.is_copied);
  EXPECT_THAT(placed->placement.reason,
              HasSubstr("has this file in memory in small pages and does not let go of them"));
}

TEST_F(SystemMapsHugePages, OfAFileInMemoryOnRequest) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const fs::path before = directory_;
  directory_ = fs::path("/dev/shm") / fmt::format("place_packed_{}", getpid());
  fs::create_directories(directory_);
  const bool can_map = CanMap(directory_, /*on_request=*/true);
  if (can_map) {
    Write(kDemo, kernels::WeightFormat::kF32);
    const ModelWeights weights = Map();
    ExpectInHugePages(*weights.mapped, Populate(weights));
  }
  fs::remove_all(directory_);
  directory_ = before;
  if (!can_map) GTEST_SKIP() << "not of files in /dev/shm";
}

TEST_F(PlacePackedTest, WhatIsSmallerThanAHugePageStaysMapped) {
  Write(kGoldenToPlace + "olmoe_plain", kernels::WeightFormat::kInt4);
  ModelWeights mapped = Map();
  ASSERT_LT(mapped.storage.size_bytes(), hardware::kHugePageBytes);
  const auto placed = PlacePacked(std::move(mapped), NumaPolicy::kAuto, pool_, ledger_, {});
  ASSERT_TRUE(placed) << placed.error().message;
  EXPECT_TRUE(placed->weights.mapped);
  EXPECT_THAT(placed->placement.Describe(), HasSubstr("mapped in small pages"));
  EXPECT_THAT(placed->placement.Describe(), HasSubstr("smaller than a huge page"));
}

#ifndef CONVENE_SANITIZED  // sanitizers reserve address space themselves
TEST_F(PlacePackedTest, WithoutMemoryForACopyTheFileStaysMapped) {
  Write(kDemo, kernels::WeightFormat::kInt8);
  const auto place = [&] {
    hardware::ThreadPool alone({0});  // a death test's process has no thread of pool_
    ModelWeights mapped = Map();
    rlimit limit = {};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = 1 << 20;  // nothing more can be mapped
    setrlimit(RLIMIT_AS, &limit);
    const auto placed = PlacePacked(std::move(mapped), NumaPolicy::kAuto, alone, ledger_, {});
    if (!placed) {
      fmt::print(stderr, "{}\n", placed.error().message);
      _exit(1);
    }
    const PackedPlacement& placement = placed->placement;
    const bool is_reserved = reserved_bytes() == placement.size_bytes;
    fmt::print(stderr, "{}\n", placement.Describe());
    _exit(placed->weights.mapped && !placement.is_copied && is_reserved ? 0 : 1);
  };
  EXPECT_EXIT(place(), testing::ExitedWithCode(0),
              "mapped in (huge pages|small pages.*, because .*a copy of them in huge pages cannot "
              "be had: cannot reserve)");
}
#endif

TEST(PackedPlacement, SaysWhereWeightsLieHowLongItTookAndWhy) {
  const uint64_t size_bytes = uint64_t{3} << 30;
  EXPECT_EQ((PackedPlacement{.size_bytes = size_bytes, .huge_bytes = size_bytes, .elapsed_s = 1.5}
                 .Describe()),
            "3.00 GiB of weights mapped in huge pages in 1.5 s (2.00 GiB/s)");
  EXPECT_EQ((PackedPlacement{.size_bytes = size_bytes, .huge_bytes = size_bytes, .elapsed_s = 0.01}
                 .Describe()),
            "3.00 GiB of weights mapped in huge pages in 0.0 s");
  EXPECT_EQ((PackedPlacement{.is_copied = true,
                             .size_bytes = size_bytes,
                             .huge_bytes = size_bytes,
                             .elapsed_s = 3,
                             .reason = "of a reason"}
                 .Describe()),
            "3.00 GiB of weights read into huge pages in 3.0 s (1.00 GiB/s), because of a reason");
  EXPECT_EQ((PackedPlacement{.size_bytes = size_bytes, .huge_bytes = size_bytes / 2}.Describe()),
            "3.00 GiB of weights mapped in small pages in 0.0 s");
}

}  // namespace
}  // namespace convene::weights
