// What `auto` is decided on: measured on ranks that are threads of this process. No test asserts a
// time of the machine; where a delay is expected, the group below makes it.
#include "runtime/measure_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "comm/threads/thread_group.h"
#include "engine/choose_pipeline.h"
#include "kernels/choose_kernels.h"
#include "weights/load_weights.h"
#include "weights/share.h"

namespace convene {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFormat = kernels::WeightFormat::kF32;

// A fixture divided by whole experts among ranks, and what one of them has of it.
class DividedWeights {
 public:
  explicit DividedWeights(int num_ranks)
      : layout_{.attention_dp = num_ranks, .expert_ep = num_ranks} {
    auto checkpoint =
        checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/tests/golden/models/qwen3_plain");
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    checkpoint_ = *std::move(checkpoint);
  }

  const strategy::Layout& layout() const { return layout_; }

  weights::ModelWeights Of(int rank, hardware::ThreadPool& pool, memory::Ledger& ledger) const {
    auto loaded =
        weights::LoadWeights(*checkpoint_, {.matrices = kFormat}, weights::ShareOf(layout_, rank),
                             hardware::NumaPolicy::kAuto, pool, ledger, {});
    CHECK(loaded.ok(), "{}", loaded.error().message);
    return *std::move(loaded);
  }

 private:
  strategy::Layout layout_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
};

// What each rank measured by `measure`, in the order of ranks.
template <typename Measured, typename Measure>
std::vector<Measured> OnEveryRank(int num_ranks, const Measure& measure) {
  const DividedWeights divided(num_ranks);
  std::vector<Measured> found(static_cast<size_t>(num_ranks));
  comm::RunOnThreads(num_ranks, [&](comm::Group& group) {
    hardware::ThreadPool pool({0});
    memory::Ledger ledger;
    const weights::ModelWeights weights = divided.Of(group.rank(), pool, ledger);
    weights::ResidentWeights store(weights);
    Result<Measured> mine = measure(group, store, **kernels::ChooseKernels(), pool,
                                    runtime::DefaultFormats(kFormat), ledger);
    CHECK(mine.ok(), "{}", mine.error().message);
    EXPECT_EQ(ledger.reserved()[memory::Use::kStaging], 0u) << "kept after measuring";
    found[static_cast<size_t>(group.rank())] = *mine;
  });
  return found;
}

void ExpectPossible(const runtime::RankMeasurement& found) {
  for (const double rate :
       {found.weight_bytes_per_second, found.flops_per_second, found.exchange_seconds,
        found.exchange_seconds_beside, found.link_bytes_per_second}) {
    EXPECT_TRUE(std::isfinite(rate) && rate > 0) << rate;
  }
  for (const double cost : {found.rows_per_expert, found.link_core_seconds_per_byte}) {
    EXPECT_TRUE(std::isfinite(cost) && cost >= 0) << cost;
  }
  EXPECT_GE(found.exchange_seconds_beside, found.exchange_seconds);
}

class MeasureRanks : public testing::TestWithParam<int> {};

TEST_P(MeasureRanks, GivesRatesThatCanBe) {
  for (const auto& rank : OnEveryRank<runtime::RankMeasurement>(GetParam(), runtime::MeasureRank)) {
    EXPECT_EQ(rank.cores, 1);
    ExpectPossible(rank);
  }
}

TEST_P(MeasureRanks, TheRatesThatAreDecidedOnAreTheSameOnAllRanks) {
  const auto found = OnEveryRank<planner::StepRates>(GetParam(), engine::MeasureStepRates);
  for (const planner::StepRates& rank : found) {
    EXPECT_EQ(std::ssize(rank.ranks), GetParam()) << "each has its own";
    EXPECT_EQ(rank.ranks, found[0].ranks);
    for (const planner::RankStepRates& each : rank.ranks) {
      EXPECT_EQ(each.cores, 1);
      EXPECT_GT(each.flops_per_second, 0);
      EXPECT_GT(each.weight_bytes_per_second, 0);
    }
    EXPECT_GT(rank.link_bytes_per_second, 0);
    EXPECT_EQ(rank.link_bytes_per_second, found[0].link_bytes_per_second);
    EXPECT_GT(rank.link_latency, 0);
    EXPECT_EQ(rank.link_latency, found[0].link_latency);
    EXPECT_GE(rank.link_latency_beside, rank.link_latency);
    EXPECT_EQ(rank.link_latency_beside, found[0].link_latency_beside);
    EXPECT_EQ(rank.link_core_seconds_per_byte, found[0].link_core_seconds_per_byte);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MeasureRanks, testing::Values(2, 3));

// A group whose exchanges take at least `latency_s` and the time of their bytes at a rate.
class SlowGroup : public comm::Group {
 public:
  SlowGroup(comm::Group& group, double latency_s, double bytes_per_second)
      : group_(group), latency_s_(latency_s), bytes_per_second_(bytes_per_second) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

 private:
  class SlowExchange : public comm::Exchange {
   public:
    SlowExchange(std::unique_ptr<comm::Exchange> exchange, Clock::time_point end)
        : exchange_(std::move(exchange)), end_(end) {}
    bool Test() override { return exchange_->Test() && Clock::now() >= end_; }

   private:
    std::unique_ptr<comm::Exchange> exchange_;
    Clock::time_point end_;
  };

  std::unique_ptr<comm::Exchange> StartMessages(int queue,
                                                std::span<const std::span<const std::byte>> send,
                                                std::span<const std::span<std::byte>> receive,
                                                std::string what) override {
    size_t bytes = 0;
    for (int to = 0; to < size(); ++to) bytes += to == rank() ? 0 : send[to].size();
    const std::chrono::duration<double> seconds(latency_s_ +
                                                static_cast<double>(bytes) / bytes_per_second_);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
    return std::make_unique<SlowExchange>(
        group_.StartAllToAll(queue, send, receive, std::move(what)), end);
  }

  comm::Group& group_;
  double latency_s_;
  double bytes_per_second_;
};

TEST(MeasureRank, ASlowLinkIsFoundAsSlowAsItIs) {
  constexpr double kLatency = 0.01;
  constexpr double kBytesPerSecond = 2e7;
  // The link is far slower than the machine can be, so that what is found is the link.
  constexpr double kWide = 8;
  const auto found =
      OnEveryRank<runtime::RankMeasurement>(2, [&](comm::Group& group, auto&&... parts) {
        SlowGroup slow(group, kLatency, kBytesPerSecond);
        return runtime::MeasureRank(slow, parts...);
      });
  for (const runtime::RankMeasurement& rank : found) {
    ExpectPossible(rank);
    EXPECT_GT(rank.exchange_seconds, kLatency / 2);  // no waiting is shorter
    EXPECT_LT(rank.exchange_seconds, kLatency * kWide);
    EXPECT_GT(rank.link_bytes_per_second, kBytesPerSecond / kWide);
    EXPECT_LT(rank.link_bytes_per_second, kBytesPerSecond * kWide);
  }
}

TEST(MeasureRank, OneRankHasNothingToMeasureAndNothingToChoose) {
  const DividedWeights divided(1);
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const weights::ModelWeights weights = divided.Of(0, pool, ledger);
  weights::ResidentWeights store(weights);
  const Result<engine::ChosenPipeline> chosen =
      engine::ChoosePipeline({}, weights.spec, store, runtime::DefaultFormats(kFormat),
                             comm::WireFormat::kF32, **kernels::ChooseKernels(), pool, ledger);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->pipeline, strategy::Pipeline());
  EXPECT_EQ(chosen->from_tokens, 0);
  EXPECT_EQ(chosen->words, "");
}

}  // namespace
}  // namespace convene
