// That a model takes the memory that was planned for it, and no other.
#include "engine/loaded_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/file_lock.h"
#include "comm/threads/thread_group.h"
#include "device/cpu/cpu_device.h"
#include "engine/announce_load.h"
#include "engine/kept_machine_test.h"
#include "engine/known_costs.h"
#include "engine/rank_options.h"
#include "engine/ranks.h"
#include "hardware/huge_buffer.h"
#include "hardware/kernel_files.h"
#include "hardware/memory_status.h"
#include "memory/spill_file.h"
#include "weights/pack_directory.h"
#include "weights/paged_weights.h"

namespace convene::engine {
namespace {

using hardware::HugeBuffer;
using memory::Use;

const std::string kFixtures = CONVENE_SOURCE_DIR "/tests/golden/models/";

std::unique_ptr<LoadedModel> LoadFixture(const std::string& directory, const LoadOptions& options,
                                         const LoadObserver& observer = {}) {
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(directory, options, observer);
  CHECK(model.ok(), "{}", model.error().message);
  return *std::move(model);
}

// Its weights in int8, in a packed directory.
void Pack(const std::string& source, const std::string& target) {
  const auto checkpoint = checkpoint::Checkpoint::Open(source);
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto packed =
      weights::PackDirectory(*checkpoint, {.matrices = kernels::WeightFormat::kInt8},
                             {.directory = target}, pool, ledger, {});
  CHECK(packed.ok(), "{}", packed.error().message);
}

// What lies in buffers, if all uses but that of the program do.
uint64_t InBuffers(const memory::Amounts& bytes) { return bytes.total() - bytes[Use::kProgram]; }

TEST(LoadedModel, ReservesWhatWasPlannedAndAllocatesNothingElse) {
  for (const char* name : {"olmoe_plain", "gpt_oss_mxfp4", "deepseek_v2_groups", "switch_plain"}) {
    for (const kernels::WeightFormat format :
         {kernels::WeightFormat::kF32, kernels::WeightFormat::kInt8}) {
      SCOPED_TRACE(fmt::format("{} {}", name, kernels::Name(format)));
      const size_t before = HugeBuffer::total_bytes();
      uint64_t most_bytes = 0;
      const LoadObserver observer{.planned = {}, .progress = [&](uint64_t, uint64_t) {
                                    most_bytes = std::max(most_bytes, HugeBuffer::total_bytes());
                                  }};
      const auto model = LoadFixture(
          kFixtures + name, {.formats = {.weights = format}, .context = 256, .max_sequences = 3},
          observer);
      EXPECT_EQ(model->ledger().reserved(), model->memory().bytes);
      EXPECT_EQ(HugeBuffer::total_bytes() - before, InBuffers(model->memory().bytes));
      EXPECT_LE(most_bytes - before, InBuffers(model->memory().bytes)) << "while it was loaded";
      EXPECT_LE(model->ledger().reserved().total(), model->ledger().tier().budget_bytes);
      EXPECT_EQ(model->ledger().Describe(), model->memory().Describe());
      EXPECT_EQ(model->memory().weights_bytes(), model->weight_bytes().size());
      EXPECT_EQ(model->memory().bytes[Use::kExchange], 0u);
    }
  }
}

TEST(LoadedModel, GivesItsMemoryBack) {
  const size_t before = HugeBuffer::total_bytes();
  LoadFixture(kFixtures + "olmoe_plain", {.context = 256}).reset();
  EXPECT_EQ(HugeBuffer::total_bytes(), before);
}

TEST(LoadedModel, PanelsAreReadAsWasMeasuredOnThisMachine) {
  KeptMachine kept(testing::TempDir() + fmt::format("measured_{}", getpid()));
  const std::string directory = kFixtures + "olmoe_plain";
  const auto model = LoadFixture(directory, {.context = 256});
  ASSERT_NE(model->kernels().streaming, nullptr);
  EXPECT_EQ(model->kernels().streaming->numbers(), kept.streaming.numbers());
  // What was measured on another kind of CPU, with the same name, instructions and numbers, is not
  // taken; null is as is usual.
  kept.profile.cpuid += " of another";
  kept.Save();
  EXPECT_EQ(LoadFixture(directory, {.context = 256})->kernels().streaming, nullptr);
}

TEST(LoadedModel, ThreadsOfTheHostLaneAreTakenFromThoseThatCompute) {
  LoadOptions options{.context = 256};
  const std::vector<int> cpus = LoadFixture(kFixtures + "olmoe_plain", options)->pool().cpus();
  options.plan.host_threads = static_cast<int>(cpus.size()) - 1;
  const auto split = LoadFixture(kFixtures + "olmoe_plain", options);
  EXPECT_EQ(split->pool().cpus(), std::vector{cpus.front()});
  options.plan.host_threads = static_cast<int>(cpus.size());
  const auto refused = LoadedModel::Load(kFixtures + "olmoe_plain", options, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("cannot be the host lane's"));
}

TEST(LoadedModel, ARankMayHaveFewerThreadsThanAPlanForAnother) {
  LoadOptions options{.num_threads = 1 << 16, .context = 256};
  EXPECT_FALSE(LoadedModel::Load(kFixtures + "olmoe_plain", options, {}).ok());
  options.may_have_fewer_threads = true;
  const int num_threads = LoadFixture(kFixtures + "olmoe_plain", options)->pool().size();
  EXPECT_GE(num_threads, 1);
  EXPECT_LT(num_threads, 1 << 16);
}

TEST(LoadedModel, AMappedDirectoryIsReservedToo) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / fmt::format("mapped_{}", getpid());
  const LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  Pack(kFixtures + "olmoe_plain", directory.string());
  const size_t before = HugeBuffer::total_bytes();
  const auto mapped = LoadFixture(directory.string(), options);
  EXPECT_EQ(mapped->ledger().reserved(), mapped->memory().bytes);
  EXPECT_GT(mapped->memory().weights_bytes(), 0u);
  EXPECT_EQ(HugeBuffer::total_bytes() - before,
            InBuffers(mapped->memory().bytes) - mapped->memory().weights_bytes());
  std::filesystem::remove_all(directory);
}

// Of a prompt and two tokens behind it, each in a step of its own.
std::vector<float> LogitsOf(LoadedModel& model) {
  std::vector<float> logits;
  std::vector<int32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<int32_t> blocks(3);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (const auto& [first, count] : {std::pair(0, 38), std::pair(38, 1), std::pair(39, 1)}) {
    const device::SequenceStep step{
        .tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
        .first_position = first,
        .blocks = blocks,
        .prompt_length = 38};
    EXPECT_TRUE(model.transformer().Forward({&step, 1}, [&](int, int, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
    }));
  }
  return logits;
}

TEST(LoadedModel, ACheckpointThatDoesNotFitIsPackedOnceAndReadWhileItRuns) {
  const std::string demo = CONVENE_SOURCE_DIR "/models/demo";
  const std::filesystem::path pages =
      std::filesystem::path(testing::TempDir()) / fmt::format("pages_{}", getpid());
  std::filesystem::remove_all(pages);
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  std::vector<float> expected;
  uint64_t needed_bytes = 0;
  {
    const auto whole = LoadFixture(demo, options);
    expected = LogitsOf(*whole);
    needed_bytes = whole->memory().needed_bytes();
    EXPECT_EQ(whole->paged(), nullptr);
  }
  options.page_directory = pages.string();
  const size_t before = HugeBuffer::total_bytes();
  int num_packings = 0;
  const LoadObserver observer{
      .planned = {}, .progress = {}, .packing = [&](uint64_t, uint64_t) { ++num_packings; }};
  for (const bool is_first : {true, false}) {
    const hardware::ResidentMemory resident = hardware::ReadResidentMemory();
    options.memory_budget =
        resident.own_bytes + resident.file_bytes + needed_bytes - (uint64_t{2} << 20);
    num_packings = 0;
    const auto paged = LoadFixture(demo, options, observer);
    EXPECT_EQ(num_packings > 0, is_first);
    ASSERT_NE(paged->paged(), nullptr);
    EXPECT_EQ(paged->ledger().reserved(), paged->memory().bytes);
    EXPECT_EQ(HugeBuffer::total_bytes() - before, InBuffers(paged->memory().bytes));
    EXPECT_TRUE(LogitsOf(*paged) == expected);
    const weights::PageStatistics pages_read = paged->paged()->statistics();
    EXPECT_GT(pages_read.num_read, 0);
    EXPECT_GT(pages_read.num_chosen, 0) << "the single tokens' experts were predicted";
  }
  // Without a place for pages it is refused.
  options.page_directory.clear();
  const auto refused = LoadedModel::Load(demo, options, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  std::filesystem::remove_all(pages);
}

TEST(LoadedModel, WhoeverFindsAnotherAtThePagesWaitsAndTakesThem) {
  namespace fs = std::filesystem;
  const std::string demo = CONVENE_SOURCE_DIR "/models/demo";
  const fs::path pages = fs::path(testing::TempDir()) / fmt::format("locked_pages_{}", getpid());
  fs::remove_all(pages);
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  options.page_directory = pages.string();
  options.plan.experts_in_memory = 12;
  LoadFixture(demo, options);
  const fs::path packed = fs::directory_iterator(pages)->path();
  EXPECT_EQ(std::distance(fs::directory_iterator(pages), fs::directory_iterator()), 1)
      << "the lock is gone";
  // Another process packs.
  const fs::path unfinished = pages / "unfinished";
  fs::rename(packed, unfinished);
  std::optional<FileLock> others(*FileLock::Take(packed.string() + ".lock", {}));
  std::atomic<bool> waits = false;
  int num_packings = 0;
  std::jthread second([&] {
    LoadObserver observer;
    observer.packing = [&](uint64_t, uint64_t) { ++num_packings; };
    observer.decided = [&](const std::string& line) {
      if (line.starts_with("another process packs this checkpoint into ")) waits = true;
    };
    const auto model = LoadedModel::Load(demo, options, observer);
    EXPECT_TRUE(model) << model.error().message;
    EXPECT_TRUE(waits);
    waits = true;
  });
  while (!waits) std::this_thread::yield();
  fs::rename(unfinished, packed);
  others.reset();
  second.join();
  EXPECT_EQ(num_packings, 0);
  fs::remove_all(pages);
}

TEST(LoadedModel, PagesAreNotMadeInMemoryItself) {
  const std::string directory = fmt::format("/dev/shm/convene_pages_{}", getpid());
  if (!memory::SpillFile::IsInMemory(directory)) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  options.page_directory = directory;
  options.plan.experts_in_memory = 12;
  const auto refused = LoadedModel::Load(CONVENE_SOURCE_DIR "/models/demo", options, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("give --page-dir DIR, which is on a disk"),
            std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(std::filesystem::exists(directory));
  // Where all of it fits, nothing is to be read from there.
  options.plan.experts_in_memory.reset();
  EXPECT_EQ(LoadFixture(CONVENE_SOURCE_DIR "/models/demo", options)->paged(), nullptr);
}

TEST(LoadedModel, RandomWeightsNeedNoMoreThanAConfiguration) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / fmt::format("shape_{}", getpid());
  std::filesystem::create_directories(directory);
  std::filesystem::copy_file(CONVENE_SOURCE_DIR "/models/demo/config.json",
                             directory / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  LoadOptions options{.context = 256, .random_weights = true};
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8, kernels::WeightFormat::kInt4}) {
    options.formats.weights = format;
    const auto model = LoadFixture(directory.string(), options);
    EXPECT_EQ(model->ledger().reserved(), model->memory().bytes);
    const std::vector<float> logits = LogitsOf(*model);
    EXPECT_TRUE(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
    EXPECT_NE(logits.front(), logits[1]);
    EXPECT_TRUE(LogitsOf(*LoadFixture(directory.string(), options)) == logits)
        << "they are always these";
  }
  options.random_weights = false;
  EXPECT_FALSE(LoadedModel::Load(directory.string(), options, {}));
  std::filesystem::remove_all(directory);
}

TEST(LoadedModel, APlanSaysHowManyExpertsStayInMemory) {
  const std::string demo = CONVENE_SOURCE_DIR "/models/demo";
  const std::filesystem::path pages =
      std::filesystem::path(testing::TempDir()) / fmt::format("planned_pages_{}", getpid());
  std::filesystem::remove_all(pages);
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  const std::vector<float> expected = LogitsOf(*LoadFixture(demo, options));
  options.page_directory = pages.string();
  // There is memory for all of them.
  options.plan.experts_in_memory = 12;
  {
    const auto paged = LoadFixture(demo, options);
    ASSERT_NE(paged->paged(), nullptr);
    EXPECT_EQ(paged->memory().num_page_buffers, 12);
    EXPECT_TRUE(LogitsOf(*paged) == expected);
    memory::Ledger unlimited;
    const auto planned =
        PlanMemoryOf(device::CpuBytes(), paged->spec(), options, paged->formats(), 1, unlimited);
    ASSERT_TRUE(planned);
    EXPECT_EQ(planned->weights_bytes(), paged->memory().weights_bytes()) << "as the search asks";
  }
  std::filesystem::remove_all(pages);
}

TEST(LoadedModel, APlanSaysHowManyTokensAStepHas) {
  LoadOptions options{.context = 256, .max_step_tokens = 64};
  EXPECT_EQ(LoadFixture(kFixtures + "qwen3_plain", options)->max_step_tokens(), 64);
  options.plan.step_tokens = 128;
  options.max_sequences = 100;  // more than there would be room for otherwise
  EXPECT_EQ(LoadFixture(kFixtures + "qwen3_plain", options)->max_step_tokens(), 128);
}

TEST(LoadedModel, RanksReserveTheirExchangesAndGiveStagingBack) {
  LoadOptions options{.context = 256};
  options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
  options.plan.auto_pipeline = true;  // enough is planned for whatever is chosen
  const StepCostsSource source = [](const CostsRequest& request) -> Result<KnownCosts> {
    EXPECT_EQ(request.pool.size(), 1);
    // Steps are measured with the kernels that will compute them.
    EXPECT_NE(request.kernels.streaming, nullptr);
    KnownCosts known{.ranks = {.num_ranks = 2, .weights = "bf16"}, .source = "made up"};
    for (auto& task : known.ranks.tasks) task.emplace().once = 1e-3;
    // So slow that micro-batches pay.
    known.ranks.exchange.seconds = {.at = {1, 1e6}, .value = {1e-5, 10}};
    return known;
  };
  options.num_threads = 1;
  options.step_costs = source;
  const KeptMachine kept(testing::TempDir() + fmt::format("kept_{}", getpid()));
  comm::RunOnThreads(2, [&](comm::Group& group) {
    if (group.rank() != 0) {
      const Status followed = FollowRankZero(group, "", source);
      EXPECT_TRUE(followed) << followed.error().message;
      return;
    }
    LoadOptions own = options;
    own.group = &group;
    auto model = LoadFixture(kFixtures + "qwen3_plain", own);
    EXPECT_EQ(model->ledger().reserved(), model->memory().bytes);
    EXPECT_GT(model->memory().bytes[Use::kExchange], 0u);
    EXPECT_EQ(model->memory().bytes[Use::kStaging], 0u);
    EXPECT_THAT(model->memory().Describe(), testing::HasSubstr("exchange buffers"));
    model->transformer().EndSteps();
    Dismiss(group);
  });
}

// A prompt of tokens 0 to 16 and a token behind it, on two ranks; their logits. `notes` gets what
// loading said.
std::vector<float> LogitsOfTwoRanks(const std::string& directory, const LoadOptions& options,
                                    std::string* notes = nullptr) {
  std::vector<float> logits;
  comm::RunOnThreads(2, [&](comm::Group& group) {
    if (group.rank() != 0) {
      const Status followed = FollowRankZero(group);
      EXPECT_TRUE(followed) << followed.error().message;
      return;
    }
    LoadOptions own = options;
    own.group = &group;
    LoadObserver observer;
    if (notes != nullptr) {
      observer.decided = [notes](const std::string& note) { *notes += note + "\n"; };
    }
    auto model = LoadFixture(directory, own, observer);
    EXPECT_EQ(model->ledger().reserved(), model->memory().bytes);
    std::vector<int32_t> tokens(18);
    std::iota(tokens.begin(), tokens.end(), 0);
    const std::vector<int32_t> blocks = {0};
    const auto run = [&](int first, int count) {
      const device::SequenceStep step{.tokens = std::span(tokens).subspan(
                                          static_cast<size_t>(first), static_cast<size_t>(count)),
                                      .first_position = first,
                                      .blocks = blocks,
                                      .prompt_length = 17};
      EXPECT_TRUE(
          model->transformer().Forward({&step, 1}, [&](int, int, std::span<const float> row) {
            logits.insert(logits.end(), row.begin(), row.end());
          }));
    };
    run(0, 17);
    run(17, 1);
    // What both divisions at once take is a matter of loading.
    EXPECT_EQ(model->transformer().phase_changes().count,
              options.plan.decode && !options.plan.phase_change.keeps_both ? 1 : 0);
    model->transformer().EndSteps();
    Dismiss(group);
  });
  return logits;
}

TEST(LoadedModel, RanksReserveBothDivisionsOfTheExperts) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / fmt::format("phases_{}", getpid());
  for (const char* name : {"olmoe_plain", "gpt_oss_plain"}) {
    LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
    std::filesystem::remove_all(directory);
    Pack(kFixtures + name, directory.string());
    options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
    options.plan.decode = {.attention_dp = 2, .expert_tp = 2};
    const std::vector<float> expected = LogitsOfTwoRanks(kFixtures + name, options);
    EXPECT_EQ(LogitsOfTwoRanks(directory.string(), options), expected);
    options.plan.phase_change.keeps_both = true;
    const auto came_from_others = testing::HasSubstr("came from other ranks");
    std::string notes;
    EXPECT_EQ(LogitsOfTwoRanks(kFixtures + name, options, &notes), expected);
    EXPECT_THAT(notes, testing::Not(came_from_others)) << "each rank reads both";
    EXPECT_EQ(LogitsOfTwoRanks(directory.string(), options, &notes), expected);
    EXPECT_THAT(notes, came_from_others);
  }
  std::filesystem::remove_all(directory);
}

TEST(LoadedModel, RanksReserveTheBackupOfTheirExperts) {
  for (const char* name : {"olmoe_plain", "gpt_oss_plain"}) {
    LoadOptions options{.formats = {.weights = kernels::WeightFormat::kBf16}, .context = 256};
    options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
    options.plan.decode = {.attention_dp = 2, .expert_tp = 2};
    const std::vector<float> moved = LogitsOfTwoRanks(kFixtures + name, options);
    options.plan.phase_change.transition = plan::Transition::kInt4;
    const std::vector<float> loaded = LogitsOfTwoRanks(kFixtures + name, options);
    ASSERT_EQ(loaded.size(), moved.size());
    // Prompts have the experts as they are, generated tokens do not.
    const auto vocab = static_cast<ptrdiff_t>(moved.size() / 18);
    EXPECT_TRUE(std::equal(moved.begin(), moved.end() - vocab, loaded.begin()));
    EXPECT_FALSE(std::equal(moved.end() - vocab, moved.end(), loaded.end() - vocab));
  }
}

TEST(LoadedModel, RanksReadTheirExpertsFromOneDirectoryThatIsPackedOnce) {
  const std::string model = kFixtures + "olmoe_plain";
  const std::filesystem::path pages =
      std::filesystem::path(testing::TempDir()) / fmt::format("rank_pages_{}", getpid());
  std::filesystem::remove_all(pages);
  LoadOptions options{.formats = {.weights = kernels::WeightFormat::kInt8}, .context = 256};
  options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
  options.plan.auto_pipeline = true;
  const std::vector<float> expected = LogitsOfTwoRanks(model, options);
  options.page_directory = pages.string();
  options.plan.experts_in_memory = 3;
  EXPECT_EQ(LogitsOfTwoRanks(model, options), expected);
  const auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(pages),
                         std::filesystem::directory_iterator());
  };
  EXPECT_EQ(count(), 1);
  // One that is packed is read where it lies.
  const std::string packed = std::filesystem::directory_iterator(pages)->path().string();
  options.page_directory.clear();
  EXPECT_EQ(LogitsOfTwoRanks(packed, options), expected);
  std::filesystem::remove_all(pages);
}

#ifndef CONVENE_SANITIZED  // sanitizers reserve much themselves
// Sizes at which anything of weights, KV cache or steps that lay elsewhere would be more than the
// program has for itself.
TEST(LoadedModel, WhatIsNotReservedIsLittle) {
  const auto data_bytes = [] {
    const std::string status = hardware::ReadKernelFile("/proc/self/status").value_or("");
    return *hardware::NumberAfter(status, "VmData") * 1024;
  };
  const uint64_t before = data_bytes();
  const auto model = LoadFixture(CONVENE_SOURCE_DIR "/models/demo",
                                 {.formats = {.weights = kernels::WeightFormat::kF32},
                                  .num_threads = 1,
                                  .max_step_tokens = 4096,
                                  .max_sequences = 256});
  const memory::Amounts& bytes = model->memory().bytes;
  for (const Use use : {Use::kKvCache, Use::kWorking}) {
    ASSERT_GT(bytes[use], bytes[Use::kProgram]) << "too small to tell: " << static_cast<int>(use);
  }
  std::vector<int32_t> tokens(300, 7);
  std::vector<int32_t> blocks = {0, 1, 2, 3, 4};
  const device::SequenceStep step{.tokens = tokens, .blocks = blocks, .prompt_length = 300};
  ASSERT_TRUE(model->transformer().Forward({&step, 1}, [](int, int, std::span<const float>) {}));
  EXPECT_LE(data_bytes() - before, bytes.total());
}
#endif

}  // namespace
}  // namespace convene::engine
