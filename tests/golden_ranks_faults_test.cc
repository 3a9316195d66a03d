// Tasks that fail, of every kind, on one rank and on two at once: the step ends with the error on
// rank 0, and the next step gives what it would have given.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <set>

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
  std::vector<runtime::SequenceStep> Step() {
    std::vector<runtime::SequenceStep> step;
    for (int group = 0; group < GetParam().layout.attention_dp; ++group) {
      step.push_back({.tokens = tokens_,
                      .blocks = blocks_,
                      .prompt_length = static_cast<int>(tokens_.size()),
                      .group = group});
    }
    return step;
  }

  static Result<std::vector<float>> Logits(runtime::Transformer& transformer,
                                           std::span<const runtime::SequenceStep> step) {
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
    const std::vector<runtime::SequenceStep> step = Step();
    const Result<std::vector<float>> expected = Logits(transformer, step);
    ASSERT_TRUE(expected.ok()) << expected.error().message;
    std::set<schedule::TaskKind> kinds;
    for (const schedule::Task& task : transformer.schedule().tasks) kinds.insert(task.kind);
    int num_failed = 0;
    for (const schedule::TaskKind kind : kinds) {
      std::set<std::set<int>> choices = {{0}, {num_ranks - 1}, {0, num_ranks - 1}};
      if (kind == schedule::TaskKind::kHead) choices = {{0}};
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

INSTANTIATE_TEST_SUITE_P(
    Divisions, GoldenRanksFaults,
    testing::Values(
        OneRank(), Division{"ep2", {1, 2, 2, 1}},
        Division{"ep2_three_chunks", {1, 2, 2, 1}, {3, strategy::ChunkCut::kTokens}},
        Division{"ep2_groups_of_experts", {1, 2, 2, 1}, {2, strategy::ChunkCut::kExperts}},
        Division{"ep2_without_overlap", {1, 2, 2, 1}, {1, strategy::ChunkCut::kTokens, false}},
        Division{"ep2_micro_batches", {1, 2, 2, 1}, {.micro_batches = 2}},
        Division{"slice2", {1, 2, 1, 2}}, Division{"tp2", {2, 1, 1, 2}},
        Division{"tp2dp2_ep4", {2, 2, 4, 1}}),
    [](const auto& division) { return division.param.name; });

}  // namespace
}  // namespace convene
