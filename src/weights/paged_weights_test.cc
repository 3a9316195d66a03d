// Experts that are read from a packed directory when they are wanted: which give way, and what
// becomes of disks that fail and files that are damaged or cut. That logits are the same is tested
// in tests/golden_places_test.cc.
#include "weights/paged_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "hardware/thread_pool.h"
#include "memory/failing_lane_test.h"
#include "weights/load_weights.h"
#include "weights/pack_directory.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PagedWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("paged_store_{}", getpid());
    fs::remove_all(directory_);
    const std::string source = CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain";
    auto checkpoint = checkpoint::Checkpoint::Open(source);
    ASSERT_TRUE(checkpoint.ok());
    hardware::ThreadPool pool({0});
    auto weights = LoadWeights(*checkpoint, {.matrices = kernels::WeightFormat::kInt8}, Share{},
                               hardware::NumaPolicy::kAuto, pool, ledger_, {});
    ASSERT_TRUE(weights.ok());
    expected_ = std::make_unique<ModelWeights>(*std::move(weights));
    const auto packed = PackDirectory(*checkpoint, {.matrices = kernels::WeightFormat::kInt8},
                                      {.directory = directory_.string()}, pool, ledger_, {});
    ASSERT_TRUE(packed) << packed.error().message;
    // What is written from here on is later by more than clocks of file systems are coarse.
    fs::last_write_time(path(), fs::last_write_time(path()) - std::chrono::seconds(10));
    num_experts_ = static_cast<int>(expected_->layers[0].moe->experts.size());
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(directory_);
  }

  Status Load(const PagedOptions& options) {
    auto packed = OpenPackedDirectory(directory_.string());
    if (!packed) return packed.error();
    tensors_ = packed->tensors;
    auto store = PagedWeights::Load(*std::move(packed), options, ledger_, {}, &weights_);
    if (!store) return store.error();
    store_ = *std::move(store);
    return {};
  }
  void MustLoad(const PagedOptions& options) {
    const Status loaded = Load(options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  }

  // Reads of the disk that leasing these takes; they must be what was packed.
  int64_t ReadsOf(int layer, const std::vector<int>& experts) {
    if (layer < last_layer_) store_->BeginStep();
    last_layer_ = layer;
    const int64_t before = store_->statistics().num_read;
    const auto lease = store_->LeaseExperts({.layer = layer}, experts);
    EXPECT_TRUE(lease.ok()) << lease.error().message;
    for (const int expert : experts) {
      const FfnWeights& found = (**lease)[expert];
      const FfnWeights& wanted = expected_->layers[layer].moe->experts[expert];
      EXPECT_EQ(0, std::memcmp(found.up.data, wanted.up.data, wanted.up.size_bytes()));
      EXPECT_EQ(0, std::memcmp(found.down.data, wanted.down.data, wanted.down.size_bytes()));
    }
    return store_->statistics().num_read - before;
  }

  // Where a matrix lies in the file.
  uint64_t OffsetOf(const std::string& name) const {
    for (const auto& tensor : tensors_) {
      if (tensor.name == name) return tensor.offset;
    }
    CHECK(false, "no {}", name);
  }
  std::string path() const { return (directory_ / "convene.safetensors").string(); }
  void FlipByteAt(uint64_t offset) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(static_cast<std::streamoff>(offset)).get(byte);
    file.seekp(static_cast<std::streamoff>(offset)).put(static_cast<char>(byte ^ 4));
  }

  fs::path directory_;
  memory::Ledger ledger_;
  std::unique_ptr<ModelWeights> expected_;
  std::vector<checkpoint::StoredTensor> tensors_;
  ModelWeights weights_;
  std::unique_ptr<PagedWeights> store_;
  int num_experts_ = 0;
  int last_layer_ = -1;
};

TEST_F(PagedWeightsTest, PagesStayAsLongAsThereIsRoom) {
  MustLoad({.num_buffers = 4});
  EXPECT_EQ(ReadsOf(0, {0, 1}), 2);
  EXPECT_EQ(ReadsOf(0, {0, 1}), 0);
  EXPECT_EQ(ReadsOf(1, {2, 3}), 2);
  EXPECT_EQ(ReadsOf(0, {1}), 0);
  EXPECT_EQ(ReadsOf(1, {3}), 0);
  EXPECT_EQ(store_->statistics().num_used, 8);
  EXPECT_EQ(store_->statistics().num_found, 4);
}

TEST_F(PagedWeightsTest, TheLeastUsedOrTheLongestUnusedGivesWay) {
  MustLoad({.num_buffers = 3, .eviction = PageEviction::kLeastUsed});
  for (const int expert : {0, 0, 0, 1, 1, 2}) {
    store_->BeginStep();
    ReadsOf(0, {expert});
  }
  store_->BeginStep();
  EXPECT_EQ(ReadsOf(0, {3}), 1);
  EXPECT_EQ(ReadsOf(0, {0}), 0) << "used most";
  EXPECT_EQ(ReadsOf(0, {1}), 0);
  EXPECT_EQ(ReadsOf(0, {2}), 1) << "it has given way";

  MustLoad({.num_buffers = 3, .eviction = PageEviction::kLongestUnused});
  for (const int expert : {0, 0, 0, 1, 1, 2}) ReadsOf(0, {expert});
  EXPECT_EQ(ReadsOf(0, {3}), 1);
  EXPECT_EQ(ReadsOf(0, {1}), 0);
  EXPECT_EQ(ReadsOf(0, {2}), 0);
  EXPECT_EQ(ReadsOf(0, {0}), 1) << "it has given way";
}

// Of experts that are wanted equally often those of the layer that was just computed give way: the
// least recently used ones would be those that come next, and nothing would ever be found.
TEST_F(PagedWeightsTest, WhatEveryStepWantsIsFoundAsFarAsThereIsRoom) {
  ASSERT_EQ(expected_->layers.size(), 2u);
  for (const PageEviction eviction : {PageEviction::kLeastUsed, PageEviction::kLongestUnused}) {
    MustLoad({.num_buffers = 6, .eviction = eviction});
    int64_t reads = 0;
    for (int step = 0; step < 8; ++step) {
      reads = ReadsOf(0, {0, 1}) + ReadsOf(0, {2, 3}) + ReadsOf(1, {0, 1}) + ReadsOf(1, {2, 3});
    }
    if (eviction == PageEviction::kLeastUsed) {
      EXPECT_LE(reads, 4) << "of eight, six of which have room, two being computed";
    } else {
      EXPECT_EQ(reads, 8);
    }
  }
}

TEST_F(PagedWeightsTest, WhatIsWantedSoonIsWorthMoreThanWhatWasWantedALittleMoreOften) {
  MustLoad({.num_buffers = 2});
  const auto begin_step = [&] {
    store_->BeginStep();
    last_layer_ = -1;
  };
  for (int step = 0; step < 10; ++step) {
    begin_step();
    ReadsOf(0, {0});
    if (step != 4) ReadsOf(1, {0});
  }
  begin_step();
  EXPECT_EQ(ReadsOf(0, {0}), 0);
  EXPECT_EQ(ReadsOf(0, {1}), 1);
  EXPECT_EQ(ReadsOf(1, {0}), 0) << "the next layer is nearer than the next step";
}

TEST_F(PagedWeightsTest, StepsThatReadEverythingKeepWhatTheyHaveRoomFor) {
  const auto num_layers = static_cast<int>(expected_->layers.size());
  const int num_pages = num_layers * num_experts_;
  const int num_buffers = num_pages / 2 + num_experts_;
  MustLoad({.num_buffers = num_buffers});
  const strategy::Paging paging = store_->PagingOf(/*encoder=*/false, /*num_tokens=*/1000);
  EXPECT_FALSE(paging.after_routing);
  std::vector<int> all(static_cast<size_t>(num_experts_));
  for (int expert = 0; expert < num_experts_; ++expert) all[expert] = expert;
  int64_t reads = 0;
  for (int step = 0; step < 3; ++step) {
    const int64_t before = store_->statistics().num_read;
    for (int layer = 0; layer < num_layers; ++layer) {
      for (int chunk = 0; chunk < paging.chunks; ++chunk) {
        store_->ReadAhead({.layer = layer}, chunk);
      }
      EXPECT_EQ(ReadsOf(layer, all), 0) << "they were read ahead";
      for (int chunk = 0; chunk < paging.chunks; ++chunk) store_->Release({.layer = layer}, chunk);
    }
    reads = store_->statistics().num_read - before;
  }
  // What does not fit is read in each step, with what gave way to it meanwhile: a layer at most.
  EXPECT_LE(reads, num_pages - num_buffers + num_experts_);
  EXPECT_GE(reads, num_pages - num_buffers);
}

TEST_F(PagedWeightsTest, StepsThatReadEverythingReadAsMuchInEachLayer) {
  const auto num_layers = static_cast<int>(expected_->layers.size());
  const int num_buffers = num_layers * num_experts_ / 2 + 2 * num_experts_;
  MustLoad({.num_buffers = num_buffers});
  const int chunks = store_->PagingOf(/*encoder=*/false, /*num_tokens=*/1000).chunks;
  std::vector<int64_t> reads(static_cast<size_t>(num_layers));
  for (int step = 0; step < 4; ++step) {
    for (int layer = 0; layer < num_layers; ++layer) {
      const int64_t before = store_->statistics().num_read;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        store_->ReadAhead({.layer = layer}, chunk);
      }
      for (int chunk = 0; chunk < chunks; ++chunk) store_->Release({.layer = layer}, chunk);
      reads[static_cast<size_t>(layer)] = store_->statistics().num_read - before;
    }
  }
  const auto [least, most] = std::ranges::minmax(reads);
  EXPECT_LE(most - least, num_experts_ / 2);
}

TEST_F(PagedWeightsTest, PredictedPagesAreReadAndNotHeld) {
  MustLoad({.num_buffers = 4});
  store_->Chose({.layer = 0}, {0, 1}, {});
  store_->ReadPredicted({.layer = 1}, {2, 5});
  EXPECT_EQ(store_->statistics().num_read, 2);
  EXPECT_EQ(ReadsOf(1, {2, 5}), 0) << "they were predicted";
  store_->Chose({.layer = 1}, {2, 3, 5}, {2, 5});
  EXPECT_EQ(store_->statistics().num_chosen, 3);
  EXPECT_EQ(store_->statistics().num_predicted, 2);
  store_->ReadPredicted({.layer = 1}, {6, 7});
  EXPECT_EQ(store_->statistics().num_read, 2) << "the layer has chosen already";
  EXPECT_EQ(ReadsOf(0, {0, 1, 2, 3}), 4) << "all buffers can be had";
}

TEST_F(PagedWeightsTest, TheNextStepsFirstPagesAreReadUntilThisOneEnds) {
  const auto num_layers = static_cast<int>(expected_->layers.size());
  MustLoad({.num_buffers = 2 * num_experts_});
  const strategy::Paging paging = store_->PagingOf(/*encoder=*/false, /*num_tokens=*/1000);
  const auto read_ahead = [&](int layer) {
    const int64_t before = store_->statistics().num_read;
    for (int chunk = 0; chunk < paging.chunks; ++chunk) {
      store_->ReadAhead({.layer = layer}, chunk);
    }
    for (int chunk = 0; chunk < paging.chunks; ++chunk) store_->Release({.layer = layer}, chunk);
    return store_->statistics().num_read - before;
  };
  store_->BeginStep();
  for (int layer = 0; layer < num_layers; ++layer) read_ahead(layer);
  store_->ReadNext();
  EXPECT_EQ(read_ahead(0), 0) << "they were read while the step ended";

  for (int layer = 1; layer < num_layers; ++layer) read_ahead(layer);
  store_->EndStep();
  const int64_t before = store_->statistics().num_read;
  store_->ReadNext();
  EXPECT_EQ(store_->statistics().num_read, before) << "the step has ended";
}

TEST_F(PagedWeightsTest, ARankReadsItsOwnExpertsAlone) {
  const strategy::Roles roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2};
  const int half = num_experts_ / 2;
  for (int rank = 0; rank < 2; ++rank) {
    MustLoad({.num_buffers = 4, .owner = {roles, rank}});
    EXPECT_EQ(store_->OwnExperts({.layer = 1}), (strategy::Part{rank * half, half}));
    const auto lease = store_->LeaseExperts({.layer = 1}, std::vector<int>{0, half - 1});
    ASSERT_TRUE(lease.ok()) << lease.error().message;
    ASSERT_EQ(std::ssize(**lease), half);
    for (const int local : {0, half - 1}) {
      const kernels::PackedMatrix& found = (**lease)[local].down;
      const kernels::PackedMatrix& wanted =
          expected_->layers[1].moe->experts[rank * half + local].down;
      EXPECT_EQ(0, std::memcmp(found.data, wanted.data, wanted.size_bytes()));
    }
    EXPECT_EQ(weights_.head.rows > 0, rank == 0);
    const auto embedding = store_->LeaseEmbedding(/*encoder=*/false);
    ASSERT_TRUE(embedding.ok());
    EXPECT_EQ(0, std::memcmp((*embedding)->data, expected_->embedding.data,
                             expected_->embedding.size_bytes()));
    const PagedSizes sizes = PagedSizesOf(expected_->spec, expected_->formats, {roles, rank});
    EXPECT_EQ(sizes.num_pages, half * static_cast<int>(expected_->layers.size()));
    EXPECT_EQ(weights_.storage.bytes().size(), sizes.bytes_with(4));
  }
  const strategy::Layout sliced{.attention_dp = 2, .expert_ep = 1, .expert_tp = 2};
  const Status refused = Load({.num_buffers = 4, .owner = {sliced, 0}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("packed as whole matrices"));
}

TEST_F(PagedWeightsTest, RanksWithUnlikeSharesThatAllFitCutTheirLayersAlike) {
  const strategy::Layout unlike{
      .attention_dp = 2, .expert_ep = 2, .expert_weights = {num_experts_ - 1, 1}};
  std::vector<int> chunks;
  for (int rank = 0; rank < 2; ++rank) {
    MustLoad({.num_buffers = 1000, .owner = {strategy::Roles(unlike), rank}});
    chunks.push_back(store_->PagingOf(/*encoder=*/false, /*num_tokens=*/1000).chunks);
  }
  EXPECT_EQ(chunks[0], chunks[1]);
}

TEST_F(PagedWeightsTest, APredictedPageThatCannotBeReadIsReadByWhoNeedsIt) {
  std::atomic<bool> fails = true;
  MustLoad({.num_buffers = 4, .reader = {.change_result = [&](uint64_t at, int64_t result) {
                                return fails && at >= OffsetOf("layers.1.experts.0.up")
                                           ? int64_t{-EIO}
                                           : result;
                              }}});
  store_->ReadPredicted({.layer = 1}, {0, 1});
  fails = false;
  EXPECT_EQ(ReadsOf(1, {0, 1}), 2);
}

TEST_F(PagedWeightsTest, HeldPagesAreNotReplaced) {
  MustLoad({.num_buffers = 2});
  const std::vector<int> chosen = {0, 1};
  const int chunks = store_->PagingOf(false, 1).chunks;
  for (int chunk = 0; chunk < chunks; ++chunk) store_->ReadChosen({.layer = 0}, chunk, chosen);
  const auto lease = store_->LeaseExperts({.layer = 0}, std::vector<int>{2});
  ASSERT_FALSE(lease.ok());
  EXPECT_EQ(lease.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_THAT(lease.error().message, HasSubstr("raise --memory-budget"));
  for (int chunk = 0; chunk < chunks; ++chunk) store_->Release({.layer = 0}, chunk);
  EXPECT_EQ(ReadsOf(0, {2}), 1);
}

TEST_F(PagedWeightsTest, ADamagedPageIsNamedWithItsPlace) {
  MustLoad({.num_buffers = 4});
  const std::string name = "layers.1.experts.3.down";
  FlipByteAt(OffsetOf(name) + 5);
  MustLoad({.num_buffers = 4});
  EXPECT_EQ(ReadsOf(1, {2}), 1);
  for (int turn = 0; turn < 2; ++turn) {
    const auto lease = store_->LeaseExperts({.layer = 1}, std::vector<int>{2, 3});
    ASSERT_FALSE(lease.ok());
    EXPECT_EQ(lease.error().kind, ErrorKind::kDataLoss);
    EXPECT_THAT(lease.error().message, HasSubstr(fmt::format("\"{}\" in {}", name, path())));
    EXPECT_THAT(lease.error().message,
                HasSubstr(fmt::format("at byte {}", OffsetOf("layers.1.experts.3.up"))));
  }
  FlipByteAt(OffsetOf(name) + 5);
  EXPECT_EQ(ReadsOf(1, {3}), 1) << "the store works on";

  FlipByteAt(OffsetOf("layers.0.output"));
  const Status loaded = Load({.num_buffers = 4});
  ASSERT_FALSE(loaded.ok()) << "what stays in memory is checked, too";
  EXPECT_THAT(loaded.error().message, HasSubstr("\"layers.0.output\""));
  FlipByteAt(OffsetOf("layers.0.output"));

  FlipByteAt(OffsetOf("layers.1.ffn_norm"));
  const Status norms = Load({.num_buffers = 4});
  ASSERT_FALSE(norms.ok()) << "norms are, too";
  EXPECT_THAT(norms.error().message, HasSubstr("\"layers.1.ffn_norm\""));
}

TEST_F(PagedWeightsTest, AFileThatIsWrittenToWhileItIsUsedIsToldFromADamagedOne) {
  MustLoad({.num_buffers = 4});
  EXPECT_EQ(ReadsOf(1, {2}), 1);
  FlipByteAt(OffsetOf("layers.1.experts.3.down") + 5);
  const auto lease = store_->LeaseExperts({.layer = 1}, std::vector<int>{3});
  ASSERT_FALSE(lease.ok());
  EXPECT_EQ(lease.error().kind, ErrorKind::kDataLoss);
  EXPECT_THAT(lease.error().message, HasSubstr("\"layers.1.experts.3.down\""));
  EXPECT_THAT(lease.error().message, HasSubstr("was written to while it was in use"));
}

TEST_F(PagedWeightsTest, APageThatIsRightWhenItIsReadAgainIsUsed) {
  std::atomic<bool> is_flipped = false;
  uint64_t offset = 0;
  MustLoad({.num_buffers = 4,
            .reader = {.use_direct = false, .change_result = [&](uint64_t at, int64_t result) {
                         if (at == offset && is_flipped.exchange(false)) {
                           FlipByteAt(offset);
                         }
                         return result;
                       }}});
  offset = OffsetOf("layers.0.experts.5.up");
  FlipByteAt(offset);
  is_flipped = true;
  EXPECT_EQ(ReadsOf(0, {4, 5, 6}), 3);
  EXPECT_FALSE(is_flipped);
}

TEST_F(PagedWeightsTest, AFailingDiskFailsTheTaskAloneAndTheNextOneWorks) {
  std::atomic<bool> fails = false;
  MustLoad({.num_buffers = 4, .reader = {.change_result = [&](uint64_t, int64_t result) -> int64_t {
                                return fails ? -EIO : result;
                              }}});
  EXPECT_EQ(ReadsOf(0, {1}), 1);
  fails = true;
  EXPECT_EQ(ReadsOf(0, {1}), 0) << "it is in memory";
  const std::vector<int> chosen = {0, 2};
  store_->ReadChosen({.layer = 0}, 0, chosen);
  fails = false;
  const auto lease = store_->LeaseExperts({.layer = 0}, std::vector<int>{0});
  ASSERT_FALSE(lease.ok()) << "the error of what was read ahead";
  EXPECT_THAT(lease.error().message, HasSubstr("Input/output error"));
  store_->Release({.layer = 0}, 0);
  EXPECT_EQ(ReadsOf(0, {0, 1, 2}), 2);
}

TEST_F(PagedWeightsTest, AFileThatIsCutWhileItIsUsedIsAnError) {
  MustLoad({.num_buffers = 4});
  EXPECT_EQ(ReadsOf(0, {1}), 1);
  fs::resize_file(path(), OffsetOf("layers.1.experts.0.up") + 100);
  const auto lease = store_->LeaseExperts({.layer = 1}, std::vector<int>{0});
  ASSERT_FALSE(lease.ok());
  EXPECT_THAT(lease.error().message, HasSubstr("was cut while it was read"));
  EXPECT_THAT(lease.error().message, HasSubstr("tensors \"layers.1.experts.0."));
  EXPECT_EQ(ReadsOf(0, {1}), 0);
}

TEST_F(PagedWeightsTest, ReadingAheadAndLeasesMeetOnTwoThreads) {
  MustLoad({.num_buffers = 6});
  const std::vector<int> chosen = {0, 1, 2};
  const int chunks = store_->PagingOf(false, 1).chunks;
  for (int turn = 0; turn < 30; ++turn) {
    const int layer = turn % 2;
    std::jthread ahead([&] {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        store_->ReadChosen({.layer = layer}, chunk, chosen);
      }
    });
    ReadsOf(layer, {1, 2, turn % 3 == 0 ? 4 : 0});
    ahead.join();
    for (int chunk = 0; chunk < chunks; ++chunk) store_->Release({.layer = layer}, chunk);
  }
}

TEST_F(PagedWeightsTest, PagesOfTheHostsMemoryAreCopiedToTheDevice) {
  std::atomic<bool> fails = false;
  memory::Ledger of_device;
  {
    hardware::ThreadPool pool({0});
    const auto checkpoint =
        checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain");
    ASSERT_TRUE(checkpoint.ok());
    auto loaded = LoadWeights(*checkpoint, {.matrices = kernels::WeightFormat::kInt8}, Share{},
                              hardware::NumaPolicy::kAuto, pool, ledger_, {});
    ASSERT_TRUE(loaded.ok());
    weights_ = *std::move(loaded);
  }
  auto store = PagedWeights::OnDevice(weights_, {.num_buffers = 4},
                                      std::make_unique<memory::FailingLane>(fails), of_device);
  ASSERT_TRUE(store.ok()) << store.error().message;
  store_ = *std::move(store);
  const PagedSizes sizes = PagedSizesOf(weights_.spec, weights_.formats);
  EXPECT_EQ(of_device.reserved()[memory::Use::kWeights], 4 * sizes.page_bytes);
  EXPECT_EQ(store_->lends_on_device(), DeviceLoans::kExperts);
  EXPECT_EQ(ReadsOf(0, {0, 1}), 2);
  EXPECT_EQ(ReadsOf(1, {2, 3}), 2);
  EXPECT_EQ(ReadsOf(0, {1}), 0);
  fails = true;
  const auto lease = store_->LeaseExperts({.layer = 0}, std::vector<int>{2});
  ASSERT_FALSE(lease.ok());
  EXPECT_THAT(lease.error().message, HasSubstr("the copy failed"));
  fails = false;
  EXPECT_EQ(ReadsOf(0, {2}), 1) << "the next one works";
  EXPECT_FALSE(store_->PagingOf(/*encoder=*/false, 1).predicts) << "a wrong guess costs a page";
  EXPECT_THAT(store_->Describe(),
              HasSubstr("read from the host's memory, of which the device has 4"));
  store_.reset();
}

TEST_F(PagedWeightsTest, SaysWhatStaysAndWhatIsRead) {
  MustLoad({.num_buffers = 4});
  const std::string text = store_->Describe();
  EXPECT_THAT(text, HasSubstr("of weights stay in memory"));
  EXPECT_THAT(text, HasSubstr("of which memory has 4"));
  EXPECT_THAT(text, HasSubstr(path()));
}

}  // namespace
}  // namespace convene::weights
