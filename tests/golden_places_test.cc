// Where blocks of the KV cache and weights lie changes no bit: blocks scattered over memory and
// moved between steps, or on a disk, weights in pages that are gone after each task, experts on a
// disk.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/kv_cache.h"
#include "kernels/choose_kernels.h"
#include "runtime/spilled_kv.h"
#include "tests/golden_switch_run.h"
#include "tests/paged_weights.h"
#include "weights/pack_directory.h"
#include "weights/packed_directory.h"
#include "weights/paged_weights.h"

namespace convene {
namespace {

// Moves blocks of a cache to memory of their own, and spoils what they leave.
class BlockMover {
 public:
  explicit BlockMover(device::KvCache& cache) : cache_(cache) {
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (int block = 0; block < cache.num_blocks(); ++block) all_.emplace_back(layer, block);
    }
  }

  void MoveAll() { Move(all_.size()); }
  void MoveSome() { Move(all_.size() / 3 + 1); }

 private:
  void Move(size_t count) {
    std::ranges::shuffle(all_, random_);
    for (size_t i = 0; i < count; ++i) {
      const auto [layer, block] = all_[i];
      const auto size_bytes = static_cast<size_t>(cache_.BlockBytes(layer));
      constexpr size_t kAlignment = 64;
      void* place = memory_.emplace_back(size_bytes + kAlignment).data();
      size_t space = size_bytes + kAlignment;
      std::align(kAlignment, size_bytes, place, space);
      std::byte* const before = cache_.Address(layer, block);
      cache_.Move(layer, block, static_cast<std::byte*>(place));
      std::memset(before, 0xff, size_bytes);  // NaN in all formats
    }
  }

  device::KvCache& cache_;
  std::mt19937 random_{3};
  std::vector<std::pair<int, int>> all_;  // layer and block
  std::vector<std::vector<std::byte>> memory_;
};

// Weights that are packed into a directory, whose experts are read from there when they are wanted.
class PackedFixture {
 public:
  PackedFixture(std::string source, const weights::PagedOptions& options)
      : source_(std::move(source)),
        directory_(std::filesystem::path(testing::TempDir()) /
                   fmt::format("paged_{}_{}", getpid(), options.owner.rank)),
        options_(options) {
    std::filesystem::remove_all(directory_);
  }
  ~PackedFixture() { std::filesystem::remove_all(directory_); }

  std::unique_ptr<weights::WeightStore> StoreOf(const weights::ModelWeights& resident) {
    hardware::ThreadPool pool({0});
    const auto checkpoint = checkpoint::Checkpoint::Open(source_);
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    std::filesystem::remove_all(directory_);
    const auto written = weights::PackDirectory(
        *checkpoint, resident.formats,
        {.directory = directory_.string(),
         .parts = weights::PartsOf(weights::ShareOf(options_.owner.roles, options_.owner.rank))},
        pool, ledger_, {});
    CHECK(written.ok(), "{}", written.error().message);
    auto packed = weights::OpenPackedDirectory(directory_.string());
    CHECK(packed.ok(), "{}", packed.error().message);
    const weights::PagedSizes sizes =
        weights::PagedSizesOf(packed->configuration.spec, packed->formats, options_.owner);
    planned_bytes_ = sizes.bytes_with(std::min(options_.num_buffers, sizes.num_pages));
    auto store = weights::PagedWeights::Load(*std::move(packed), options_, ledger_, {}, &weights_);
    CHECK(store.ok(), "{}", store.error().message);
    return *std::move(store);
  }
  uint64_t reserved_bytes() const { return ledger_.reserved().total(); }
  uint64_t planned_bytes() const { return planned_bytes_; }

 private:
  std::string source_;
  std::filesystem::path directory_;
  weights::PagedOptions options_;
  memory::Ledger ledger_;
  weights::ModelWeights weights_;
  uint64_t planned_bytes_ = 0;
};

class GoldenPlaces : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(CONVENE_SOURCE_DIR "/tests/golden/models") / GetParam();
    auto checkpoint = checkpoint::Checkpoint::Open(directory_.string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
    for (const char* name : {"prompt_300", "prompt_17"}) {
      const auto path = directory_ / fmt::format("{}.tokens.npy", name);
      if (std::filesystem::exists(path)) work_.prompts.push_back(ReadNpy<int32_t>(path));
    }
    inputs_ = ReadSwitchInputs(directory_);
    ASSERT_TRUE(inputs_.empty() != work_.prompts.empty());
  }

  // All logits, and an encoder's states; with blocks that move, or not.
  std::vector<std::vector<float>> Run(DividedOptions divided, bool moves) {
    std::vector<std::vector<float>> found;
    const int num_groups = divided.division.layout.attention_dp;
    const bool has_encoder = !inputs_.empty();
    const int num_blocks = has_encoder
                               ? 2 * kInputBlocks * static_cast<int>(inputs_.size())
                               : work_.num_blocks_each() * static_cast<int>(work_.prompts.size());
    divided.record = true;  // for the observer
    runtime::TransformerOptions options{
        .max_step_tokens = has_encoder ? 2 * kMostTokens : work_.num_tokens(),
        .num_kv_blocks = num_blocks,
        .context = num_blocks * device::kKvBlockTokens};
    if (spill_) {
      options.kv_spill = *spill_;
      options.num_kv_blocks -= spill_->num_blocks;
    }
    RunDivided(*checkpoint_, divided, options, [&](runtime::Transformer& transformer) {
      BlockMover mover(transformer.kv_cache());
      if (moves) {
        mover.MoveAll();
        transformer.ObserveSteps([&](const auto&) { mover.MoveSome(); });
      }
      if (has_encoder) {
        SwitchAnswers answers = SwitchRun(transformer, inputs_, num_groups).Execute();
        found = std::move(answers.states);
        std::ranges::move(answers.logits, std::back_inserter(found));
      } else {
        Answers answers = PromptsRun(transformer, work_, num_groups).Execute();
        found = std::move(answers.prompt_logits);
        std::ranges::move(answers.answer_logits, std::back_inserter(found));
      }
      spilled_ = transformer.spill_statistics();
    });
    return found;
  }
  int num_blocks() const {
    return work_.num_blocks_each() * static_cast<int>(work_.prompts.size());
  }

  std::filesystem::path directory_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  Work work_;
  std::vector<SwitchInput> inputs_;
  std::optional<runtime::KvSpillOptions> spill_;
  runtime::SpillStatistics spilled_;  // of the last run
};

TEST_P(GoldenPlaces, BlocksMayLieAnywhereAndMoveBetweenSteps) {
  for (const runtime::Formats& formats : EveryFormat()) {
    if (formats.weights.matrices == kernels::WeightFormat::kInt4) continue;  // no other cache
    const DividedOptions divided{.formats = formats, .num_threads = 2};
    EXPECT_TRUE(Run(divided, /*moves=*/true) == Run(divided, /*moves=*/false)) << Describe(formats);
  }
}

TEST_P(GoldenPlaces, WeightsNeedToStayForNoLongerThanATask) {
  const std::vector<Division> divisions = {
      OneRank(),
      {"ep2_two_chunks", {1, 2, 2, 1}, {2, strategy::ChunkCut::kTokens, true}},
      {"tp2_two_micro_batches", {2, 1, 1, 2}, {.micro_batches = 2}}};
  int num_divisions = 0;
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8}) {
    for (const Division& division : divisions) {
      DividedOptions divided{.formats = runtime::DefaultFormats(format), .division = division};
      if (!Fits(*checkpoint_, divided)) continue;
      ++num_divisions;
      const auto resident = Run(divided, /*moves=*/false);
      divided.store = [](int, const weights::ModelWeights& weights) {
        return std::make_unique<PagedWeights>(weights);
      };
      EXPECT_TRUE(Run(divided, /*moves=*/false) == resident)
          << Name(format) << ", " << division.name;
    }
  }
  EXPECT_GE(num_divisions, 4);
}

// The cores are the device here, and memory of theirs is the host's: copies are memcpy.
TEST_P(GoldenPlaces, ExpertsMayLieInTheMemoryOfAHostBesideTheDevice) {
  hardware::ThreadPool pool({0});
  const auto device = device::MakeCpuDevice(**kernels::ChooseKernels(), pool);
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(format)};
    const auto resident = Run(divided, /*moves=*/false);
    for (const int num_buffers : {2, 7, 1000}) {
      memory::Ledger of_device;
      divided.store = [&](int, weights::ModelWeights& weights) {
        auto store = weights::PagedWeights::OnDevice(weights, {.num_buffers = num_buffers},
                                                     *device->CreateCopyLane(), of_device);
        CHECK(store.ok(), "{}", store.error().message);
        return *std::move(store);
      };
      EXPECT_TRUE(Run(divided, /*moves=*/false) == resident)
          << Name(format) << ", " << num_buffers << " buffers";
    }
  }
}

TEST_P(GoldenPlaces, ExpertsMayLieOnADiskWithRoomForTwoOfThemOrMore) {
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kF32, kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8,
        kernels::WeightFormat::kInt4}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(format), .num_threads = 2};
    const auto resident = Run(divided, /*moves=*/false);
    for (const int num_buffers : {2, 7, 1000}) {
      PackedFixture packed(directory_.string(),
                           {.num_buffers = num_buffers,
                            .eviction = num_buffers == 7 ? weights::PageEviction::kLongestUnused
                                                         : weights::PageEviction::kLeastUsed});
      divided.store = [&](int, const weights::ModelWeights& weights) {
        return packed.StoreOf(weights);
      };
      EXPECT_TRUE(Run(divided, /*moves=*/false) == resident)
          << Name(format) << ", " << num_buffers << " buffers";
      EXPECT_LE(packed.reserved_bytes(), packed.planned_bytes());
    }
  }
}

TEST_P(GoldenPlaces, KeysAndValuesMayLieOnADiskButForAPartOfThem) {
  if (!runtime::SpilledKv::Supports(checkpoint_->spec(), {}).ok()) {
    const bool has_latents = checkpoint_->spec().layers.front().attention.latent.has_value();
    EXPECT_TRUE(has_latents || checkpoint_->spec().has_encoder());
    return;
  }
  for (const runtime::Formats& formats : EveryFormat()) {
    DividedOptions divided{.formats = formats, .num_threads = 2};
    spill_.reset();
    const auto resident = Run(divided, /*moves=*/false);
    EXPECT_EQ(spilled_.read_bytes, 0u);
    // All on the disk, each sequence by itself; some, in one buffer; and most, in one part.
    for (const auto& [num_in_memory, num_parts, depth] :
         {std::array{0, 2, 2}, std::array{5, 2, 1}, std::array{3, 1, 3}}) {
      spill_ = {.directory = testing::TempDir(),
                .num_blocks = num_blocks() - num_in_memory,
                .part_blocks = num_parts == 1 ? num_blocks() : work_.num_blocks_each(),
                .depth = depth};
      EXPECT_TRUE(Run(divided, /*moves=*/false) == resident)
          << Describe(formats) << ", " << num_in_memory << " blocks in memory";
      EXPECT_GT(spilled_.read_bytes, 0u);
      EXPECT_GT(spilled_.written_bytes, 0u);
    }
  }
}

TEST_P(GoldenPlaces, ExpertsAndKeysAndValuesMayLieOnADisk) {
  if (!runtime::SpilledKv::Supports(checkpoint_->spec(), {}).ok()) return;
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(format), .num_threads = 2};
    divided.formats.kv = format == kernels::WeightFormat::kInt8 ? kernels::KvFormat::kInt8
                                                                : kernels::KvFormat::kBf16;
    spill_.reset();
    const auto resident = Run(divided, /*moves=*/false);
    spill_ = {.directory = testing::TempDir(),
              .num_blocks = num_blocks() - 2,
              .part_blocks = work_.num_blocks_each()};
    for (const int num_buffers : {2, 7}) {
      PackedFixture packed(directory_.string(), {.num_buffers = num_buffers});
      divided.store = [&](int, const weights::ModelWeights& weights) {
        return packed.StoreOf(weights);
      };
      EXPECT_TRUE(Run(divided, /*moves=*/false) == resident)
          << Name(format) << ", " << num_buffers << " buffers";
    }
  }
}

TEST_P(GoldenPlaces, ADiskThatFailsEndsTheStepAndNotTheNextOne) {
  if (!runtime::SpilledKv::Supports(checkpoint_->spec(), {}).ok()) return;
  DividedOptions divided;
  const auto resident = Run(divided, /*moves=*/false);
  bool fails = false;
  bool fails_writes = false;
  spill_ = {.directory = testing::TempDir(),
            .num_blocks = num_blocks(),
            .part_blocks = work_.num_blocks_each(),
            .file = {.change_result = [&](uint64_t, bool is_write, int64_t result) -> int64_t {
              return fails && is_write == fails_writes ? -EIO : result;
            }}};
  runtime::TransformerOptions options{.max_step_tokens = work_.num_tokens(),
                                      .context = num_blocks() * device::kKvBlockTokens,
                                      .kv_spill = spill_};
  RunDivided(*checkpoint_, divided, options, [&](runtime::Transformer& transformer) {
    std::vector<int32_t> blocks;
    for (int block = 0; block < work_.num_blocks_each(); ++block) blocks.push_back(block);
    const auto& prompt = work_.prompts.back();
    const auto forward = [&](int first, int count) {
      return transformer.Forward(std::array{device::SequenceStep{
                                     .tokens = std::span(prompt).subspan(
                                         static_cast<size_t>(first), static_cast<size_t>(count)),
                                     .first_position = first,
                                     .blocks = blocks,
                                     .prompt_length = static_cast<int>(prompt.size())}},
                                 [](int, int, std::span<const float>) {});
    };
    for (const bool writes : {true, false}) {
      fails_writes = writes;
      ASSERT_TRUE(forward(0, 8).ok());
      fails = true;
      const Status failed = forward(8, 4);
      fails = false;
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.error().kind, ErrorKind::kDataLoss);
      const char* task = writes ? "write_kv of layer 0 failed" : "read_kv of layer 0 failed";
      EXPECT_NE(failed.error().message.find(task), std::string::npos) << failed.error().message;
      EXPECT_NE(failed.error().message.find(testing::TempDir()), std::string::npos);
    }
    Answers answers = PromptsRun(transformer, work_, 1).Execute();
    auto found = std::move(answers.prompt_logits);
    std::ranges::move(answers.answer_logits, std::back_inserter(found));
    EXPECT_TRUE(found == resident);
  });
}

TEST_P(GoldenPlaces, EachRankMayReadItsExpertsFromADisk) {
  int num_divisions = 0;
  for (const Division& division :
       {Division{"ep2", {1, 2, 2, 1}}, Division{"ep3", {1, 3, 3, 1}, {.overlap = false}},
        Division{"tp2", {2, 1, 1, 2}}, Division{"slice2", {1, 2, 1, 2}},
        Division{"tp2dp2_ep2tp2", {2, 2, 2, 2}}}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(kernels::WeightFormat::kInt8),
                           .division = division};
    if (!Fits(*checkpoint_, divided)) continue;
    ++num_divisions;
    const auto resident = Run(divided, /*moves=*/false);
    for (const int num_buffers : {2, 5}) {
      const int num_ranks = division.layout.num_ranks();
      std::vector<std::unique_ptr<PackedFixture>> packed;
      for (int rank = 0; rank < num_ranks; ++rank) {
        // One rank has more room than the others.
        packed.push_back(std::make_unique<PackedFixture>(
            directory_.string(),
            weights::PagedOptions{.num_buffers = num_buffers + (rank == 1 ? 3 : 0),
                                  .owner = {division.layout, rank},
                                  .least_buffers = num_buffers}));
      }
      divided.store = [&](int rank, const weights::ModelWeights& weights) {
        return packed[rank]->StoreOf(weights);
      };
      EXPECT_TRUE(Run(divided, /*moves=*/false) == resident)
          << division.name << ", " << num_buffers << " buffers";
      for (const auto& of_rank : packed) {
        EXPECT_LE(of_rank->reserved_bytes(), of_rank->planned_bytes());
      }
    }
  }
  EXPECT_GE(num_divisions, 3);
}

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenPlaces,
                         testing::Values("olmoe_plain", "qwen2_many", "gpt_oss_plain",
                                         "deepseek_v2_groups", "deepseek_v3_plain", "switch_plain"),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace convene
