// Tasks that fail, of every kind, on one rank and on two at once, and leases of weights that fail,
// one after the other: the step ends with the error on rank 0, and the next step gives what it
// would have given.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <set>
#include <type_traits>

#include "tests/golden_ranks.h"

namespace convene {
namespace {

// What is to fail: tasks of this kind, of this layer or of none, on these ranks.
struct Fault {
  std::atomic<bool> is_armed = false;
  schedule::TaskKind kind = schedule::TaskKind::kEmbed;
  int layer = 0;
  std::set<int> ranks;
  std::atomic<int> num_met = 0;

  runtime::Experiment Of(int rank) {
    return {.before_task = [this, rank](const schedule::Task& task) -> Status {
      const bool is_here = task.layer < 0 || task.layer == layer;
      if (!is_armed || task.kind != kind || !is_here || !ranks.contains(rank)) return {};
      ++num_met;
      return ResourceExhausted("planted");
    }};
  }
};

// A lease that is to fail: of this rank, after so many others.
struct LeaseFault {
  int rank = 0;
  std::atomic<int> num_before = -1;  // less than 0: none fails
};

// Resident weights, but for the fault.
class FaultyWeights final : public weights::WeightStore {
 public:
  FaultyWeights(int rank, const weights::ModelWeights& weights, LeaseFault& fault)
      : WeightStore(weights), resident_(weights), rank_(rank), fault_(fault) {}

  Result<weights::LayerLease> LeaseLayer(weights::LayerId id, weights::LayerPart part) override {
    return Unless([&] { return resident_.LeaseLayer(id, part); });
  }
  Result<weights::ExpertsLease> LeaseExperts(weights::LayerId id,
                                             std::span<const int> experts) override {
    return Unless([&] { return resident_.LeaseExperts(id, experts); });
  }
  Result<weights::MatrixLease> LeaseEmbedding(bool encoder) override {
    return Unless([&] { return resident_.LeaseEmbedding(encoder); });
  }
  Result<weights::MatrixLease> LeaseHead() override {
    return Unless([&] { return resident_.LeaseHead(); });
  }

 private:
  template <typename F>
  std::invoke_result_t<F> Unless(F&& lease) {
    if (rank_ == fault_.rank && fault_.num_before >= 0 && fault_.num_before-- == 0) {
      return DataLoss("planted");
    }
    return lease();
  }

  weights::ResidentWeights resident_;
  int rank_;
  LeaseFault& fault_;
};

// Tries `step`, which gives logits or an error, with each of its leases failing, and what it gives
// afterwards. Returns how many leases that were.
template <typename Step>
int FailEachLease(LeaseFault& fault, Step&& step) {
  const Result<std::vector<float>> expected = step();
  EXPECT_TRUE(expected.ok()) << expected.error().message;
  for (int lease = 0;; ++lease) {
    SCOPED_TRACE(fmt::format("lease {} of rank {}", lease, fault.rank));
    fault.num_before = lease;
    const Result<std::vector<float>> failed = step();
    const bool was_met = fault.num_before.exchange(-1) < 0;
    if (!was_met) {
      EXPECT_TRUE(failed.ok()) << failed.error().message;
      return lease;
    }
    EXPECT_FALSE(failed.ok());
    if (failed) return lease;
    EXPECT_EQ(failed.error().kind, ErrorKind::kDataLoss);
    EXPECT_NE(failed.error().message.find("planted"), std::string::npos) << failed.error().message;
    const Result<std::vector<float>> next = step();
    EXPECT_TRUE(next.ok()) << next.error().message;
    if (!next) return lease;
    EXPECT_TRUE(*next == *expected);
  }
}

class GoldenRanksFaults : public testing::TestWithParam<Division> {
 protected:
  void SetUp() override {
    const std::filesystem::path models = CONVENE_SOURCE_DIR "/tests/golden/models";
    auto checkpoint = checkpoint::Checkpoint::Open((models / "olmoe_plain").string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
    tokens_ = ReadNpy<int32_t>(models / "olmoe_plain" / "prompt_17.tokens.npy");
  }

  // A prompt for each group, with all its logits.
  std::vector<device::SequenceStep> Step() {
    std::vector<device::SequenceStep> step;
    for (int group = 0; group < GetParam().layout.attention_dp; ++group) {
      step.push_back({.tokens = tokens_,
                      .blocks = blocks_,
                      .prompt_length = static_cast<int>(tokens_.size()),
                      .group = group});
    }
    return step;
  }

  // Of a step, which ranks have tasks of each kind.
  std::map<schedule::TaskKind, std::set<int>> RanksByKind() const {
    const schedule::Schedule schedule = strategy::BuildStep(
        checkpoint_->spec(), {.roles = GetParam().layout, .pipeline = GetParam().pipeline});
    std::map<schedule::TaskKind, std::set<int>> ranks;
    for (const schedule::Task& task : schedule.tasks) ranks[task.kind].insert(task.lane.rank);
    return ranks;
  }

  static Result<std::vector<float>> Logits(runtime::Transformer& transformer,
                                           std::span<const device::SequenceStep> step) {
    std::vector<float> logits;
    const Status done = transformer.Forward(step, [&](int, int, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
    });
    if (!done) return done.error();
    return logits;
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> blocks_ = {0};
};

TEST_P(GoldenRanksFaults, EndTheStepOnAllRanksAndNotTheNextOne) {
  Fault fault;
  DividedOptions divided{.division = GetParam()};
  divided.experiment = [&](int rank) { return fault.Of(rank); };
  const runtime::TransformerOptions options{.max_step_tokens = 64, .num_kv_blocks = 1};
  const int num_ranks = GetParam().layout.num_ranks();
  RunDivided(*checkpoint_, divided, options, [&](runtime::Transformer& transformer) {
    const std::vector<device::SequenceStep> step = Step();
    const Result<std::vector<float>> expected = Logits(transformer, step);
    ASSERT_TRUE(expected.ok()) << expected.error().message;
    int num_failed = 0;
    for (const auto& [kind, with_kind] : RanksByKind()) {
      std::set<std::set<int>> choices;
      for (const std::set<int>& asked :
           {std::set<int>{0}, std::set<int>{num_ranks - 1}, std::set<int>{0, num_ranks - 1}}) {
        std::set<int> ranks;
        for (const int rank : asked) {
          if (with_kind.contains(rank)) ranks.insert(rank);
        }
        if (!ranks.empty()) choices.insert(ranks);
      }
      for (const std::set<int>& ranks : choices) {
        for (const int layer : {0, checkpoint_->spec().num_layers() - 1}) {
          SCOPED_TRACE(
              fmt::format("{} of layer {} on {}", Name(kind), layer, fmt::join(ranks, " and ")));
          fault.kind = kind;
          fault.layer = layer;
          fault.ranks = ranks;
          fault.num_met = 0;
          fault.is_armed = true;
          const Result<std::vector<float>> failed = Logits(transformer, step);
          fault.is_armed = false;
          ASSERT_GT(fault.num_met, 0);
          ASSERT_FALSE(failed.ok());
          ++num_failed;
          EXPECT_EQ(failed.error().kind, ErrorKind::kResourceExhausted);
          EXPECT_NE(failed.error().message.find(fmt::format("{}", Name(kind))), std::string::npos)
              << failed.error().message;
          EXPECT_NE(failed.error().message.find("planted"), std::string::npos);
          const Result<std::vector<float>> next = Logits(transformer, step);
          ASSERT_TRUE(next.ok()) << next.error().message;
          EXPECT_TRUE(*next == *expected);
        }
      }
    }
    EXPECT_GT(num_failed, 10);
  });
}

TEST_P(GoldenRanksFaults, OfALeaseEndTheStepAndNotTheNextOne) {
  LeaseFault fault;
  DividedOptions divided{.division = GetParam()};
  divided.store = [&](int rank, const weights::ModelWeights& weights) {
    return std::make_unique<FaultyWeights>(rank, weights, fault);
  };
  const runtime::TransformerOptions options{.max_step_tokens = 64, .num_kv_blocks = 1};
  const int num_ranks = GetParam().layout.num_ranks();
  RunDivided(*checkpoint_, divided, options, [&](runtime::Transformer& transformer) {
    const std::vector<device::SequenceStep> step = Step();
    for (const int rank : std::set<int>{0, num_ranks - 1}) {
      fault.rank = rank;
      const int num_leases = FailEachLease(fault, [&] { return Logits(transformer, step); });
      // Of each layer projection, attention, router and experts; and the embedding.
      const strategy::Role role = strategy::Roles(GetParam().layout).of(rank);
      const int of_layer = (role.owns_rows() ? 3 : 0) + (role.has_experts() ? 1 : 0);
      EXPECT_GE(num_leases, role.owns_rows() + of_layer * checkpoint_->spec().num_layers());
    }
  });
}

TEST(GoldenRanksFaultsOfSwitch, OfALeaseEndTheStepAndNotTheNextOne) {
  const std::filesystem::path directory = CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain";
  const auto checkpoint = checkpoint::Checkpoint::Open(directory.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto tokens = ReadNpy<int32_t>(directory / "input_17.tokens.npy");
  const std::vector<int32_t> blocks = {0};
  const std::vector<int32_t> input_blocks = {1};
  const std::vector<int32_t> start = {0};
  for (const Division& division : {OneRank(), Division{"tp2", {2, 1, 1, 2}}}) {
    LeaseFault fault;
    DividedOptions divided{.division = division};
    divided.store = [&](int rank, const weights::ModelWeights& weights) {
      return std::make_unique<FaultyWeights>(rank, weights, fault);
    };
    const int num_ranks = division.layout.num_ranks();
    RunDivided(*checkpoint, divided, {.max_step_tokens = 64, .num_kv_blocks = 2},
               [&](runtime::Transformer& transformer) {
                 const device::EncoderInput input{tokens, input_blocks};
                 const device::SequenceStep sequence{
                     .tokens = start,
                     .blocks = blocks,
                     .prompt_length = 1,
                     .encoder_blocks = input_blocks,
                     .encoder_length = static_cast<int>(tokens.size())};
                 const auto step = [&]() -> Result<std::vector<float>> {
                   std::vector<float> found;
                   const auto sink = [&](int, int, std::span<const float> row) {
                     found.insert(found.end(), row.begin(), row.end());
                   };
                   if (Status done = transformer.Encode({&input, 1}, sink); !done)
                     return done.error();
                   if (Status done = transformer.Forward({&sequence, 1}, sink); !done)
                     return done.error();
                   return found;
                 };
                 for (const int rank : std::set<int>{0, num_ranks - 1}) {
                   fault.rank = rank;
                   const auto num_layers = std::ssize(checkpoint->spec().layers) +
                                           std::ssize(checkpoint->spec().encoder_layers);
                   EXPECT_GE(FailEachLease(fault, step), 2 + 3 * num_layers);
                 }
               });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Divisions, GoldenRanksFaults,
    testing::Values(
        OneRank(), Division{"ep2", {1, 2, 2, 1}},
        Division{"ep2_three_chunks", {1, 2, 2, 1}, {3, strategy::ChunkCut::kTokens}},
        Division{"ep2_groups_of_experts", {1, 2, 2, 1}, {2, strategy::ChunkCut::kExperts}},
        Division{"ep2_without_overlap", {1, 2, 2, 1}, {1, strategy::ChunkCut::kTokens, false}},
        Division{"ep2_micro_batches", {1, 2, 2, 1}, {.micro_batches = 2}},
        Division{"slice2", {1, 2, 1, 2}}, Division{"tp2", {2, 1, 1, 2}},
        Division{"tp2dp2_ep4", {2, 2, 4, 1}},
        Division{"1to2_in_one_piece", {.expert_ep = 2, .disaggregates = true}},
        Division{
            "1to2", {.expert_ep = 2, .disaggregates = true}, {.chunks = 2, .micro_batches = 2}}),
    [](const auto& division) { return division.param.name; });

}  // namespace
}  // namespace convene
