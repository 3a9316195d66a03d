// Experts that move between prefill and decode, against runs in which both divisions lie in memory
// and nothing moves, and against one rank: the same tokens, and where the sums have the same order,
// the same logits to the bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <set>

#include "tests/golden_switch_run.h"

namespace convene {
namespace {

using kernels::WeightFormat;
using strategy::ChunkCut;
using strategy::Layout;

struct Phases {
  Division division;  // of prefill, with the pipeline of both
  Layout decode;
};

std::vector<Phases> AllPhases() {
  return {
      {{"ep2_then_slice2", {1, 2, 2, 1}}, {1, 2, 1, 2}},
      {{"slice2_then_ep2", {1, 2, 1, 2}}, {1, 2, 2, 1}},
      {{"ep3to1_then_ep2", {1, 2, 2, 1, {3, 1}}}, {1, 2, 2, 1}},
      {{"tp2_ep2_then_tp2", {2, 1, 2, 1}}, {2, 1, 1, 2}},
      {{"ep2_then_slice2_chunks_of_experts", {1, 2, 2, 1}, {2, ChunkCut::kExperts, true}},
       {1, 2, 1, 2}},
      {{"ep2_then_slice2_micro_batches", {1, 2, 2, 1}, {.micro_batches = 2}}, {1, 2, 1, 2}},
      {{"slice2_then_ep2_micro_batches_of_chunks", {1, 2, 1, 2}, {2, ChunkCut::kTokens, true, 2}},
       {1, 2, 2, 1}},
      {{"ep2_then_slice2_without_overlap", {1, 2, 2, 1}, {1, ChunkCut::kTokens, false}},
       {1, 2, 1, 2}},
      {{"ep3_then_slice3", {1, 3, 3, 1}}, {1, 3, 1, 3}},
      {{"ep4_then_ep2tp2", {1, 4, 4, 1}}, {1, 4, 2, 2}},
      {{"tp2dp2_ep4_then_tp4", {2, 2, 4, 1}}, {2, 2, 1, 4}},
  };
}

checkpoint::Checkpoint Open(const std::filesystem::path& path) {
  auto checkpoint = checkpoint::Checkpoint::Open(path.string());
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  return *std::move(checkpoint);
}

std::vector<std::vector<int32_t>> Prompts(const std::filesystem::path& path,
                                          const std::vector<const char*>& names) {
  std::vector<std::vector<int32_t>> prompts;
  for (const char* name : names) {
    prompts.push_back(ReadNpy<int32_t>(path / (std::string(name) + ".tokens.npy")));
  }
  return prompts;
}

// The work done twice by one transformer, so that the experts have come back before the second.
Answers RunTwice(const checkpoint::Checkpoint& checkpoint, const DividedOptions& divided,
                 const Work& work) {
  Answers first;
  const auto num_sequences = static_cast<int>(work.prompts.size());
  RunDivided(checkpoint, divided,
             {.max_step_tokens = work.num_tokens(),
              .num_kv_blocks = work.num_blocks_each() * num_sequences},
             [&](runtime::Transformer& transformer) {
               const int num_groups = divided.division.layout.attention_dp;
               first = PromptsRun(transformer, work, num_groups).Execute();
               ExpectSameAnswers(PromptsRun(transformer, work, num_groups).Execute(), first,
                                 /*to_the_bit=*/true);
               const runtime::PhaseChanges& changes = transformer.phase_changes();
               EXPECT_EQ(changes.count, divided.keeps_both ? 0 : 3);
             });
  return first;
}

class GoldenRanksPhases : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenRanksPhases, ComputeWhatTheyDoWhereNothingMoves) {
  const checkpoint::Checkpoint checkpoint = Open(GetParam());
  const Work work = {.prompts = Prompts(GetParam(), {"prompt_17", "prompt_1", "prompt_17"}),
                     .most_tokens = {9, 1000}};
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    int num_tried = 0;
    DividedOptions alone{.formats = runtime::DefaultFormats(format)};
    const Answers one = RunPrompts(checkpoint, alone, work);
    for (const Phases& phases : AllPhases()) {
      DividedOptions divided = alone;
      divided.division = phases.division;
      divided.decode = phases.decode;
      if (!Fits(checkpoint, divided)) continue;
      // Rounding is that of the division, whatever the pipeline.
      const bool is_plain = phases.division.pipeline == strategy::Pipeline{};
      if (format != WeightFormat::kF32 && !is_plain) continue;
      SCOPED_TRACE(fmt::format("{} in {}", phases.division.name, Name(format)));
      ++num_tried;
      const Answers moved = RunTwice(checkpoint, divided, work);
      divided.keeps_both = true;
      ExpectSameAnswers(moved, RunTwice(checkpoint, divided, work), /*to_the_bit=*/true);
      if (format != WeightFormat::kF32) continue;
      ExpectSameAnswers(moved, one,
                        IsExact(checkpoint.spec(), phases.division.layout) &&
                            IsExact(checkpoint.spec(), phases.decode));
    }
    // In int4 these experts are one group wide, too little for slices.
    EXPECT_GE(num_tried, format == WeightFormat::kInt4 ? 1 : 3);
  }
}

std::string NameOfPhases(const testing::TestParamInfo<std::filesystem::path>& fixture) {
  return fixture.param.filename().string();
}

INSTANTIATE_TEST_SUITE_P(
    Fixture, GoldenRanksPhases,
    testing::ValuesIn(FixturesNamed({"dbrx_plain", "deepseek_v2_groups", "deepseek_v3_plain",
                                     "gpt_oss_plain", "granitemoe_plain", "mixtral_plain",
                                     "olmoe_plain", "qwen2_dynamic", "qwen3_plain"})),
    NameOfPhases);

TEST(GoldenRanksPhasesOfSwitch, ComputeWhatOneRankDoes) {
  const auto path = FixturesNamed({"switch_plain"}).front();
  const checkpoint::Checkpoint checkpoint = Open(path);
  const std::vector<SwitchInput> inputs = ReadSwitchInputs(path);
  const auto run = [&](const DividedOptions& divided) {
    SwitchAnswers answers;
    RunDivided(checkpoint, divided,
               {.max_step_tokens = kMostTokens * 2,
                .num_kv_blocks = 2 * kInputBlocks * static_cast<int>(inputs.size())},
               [&](runtime::Transformer& transformer) {
                 answers =
                     SwitchRun(transformer, inputs, divided.division.layout.attention_dp).Execute();
               });
    return answers;
  };
  const SwitchAnswers one = run({});
  for (const Phases& phases : AllPhases()) {
    DividedOptions divided{.division = phases.division};
    divided.decode = phases.decode;
    if (!Fits(checkpoint, divided)) continue;
    SCOPED_TRACE(phases.division.name);
    const SwitchAnswers many = run(divided);
    EXPECT_EQ(many.tokens, one.tokens);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LT(RelativeDifference(many.states[i], one.states[i]), 1e-5) << "input " << i;
      EXPECT_LT(RelativeDifference(many.logits[i], one.logits[i]), 1e-5) << "input " << i;
    }
  }
}

// A fault while experts move ends the step with it on all ranks; the experts have moved all the
// same, and the next step is whole.
TEST(GoldenRanksPhasesFaults, EndTheStepOnAllRanksAndNotTheNextOne) {
  const auto path = FixturesNamed({"olmoe_plain"}).front();
  const checkpoint::Checkpoint checkpoint = Open(path);
  const std::vector<int32_t> tokens = ReadNpy<int32_t>(path / "prompt_17.tokens.npy");
  const std::vector<int32_t> blocks = {0};
  struct {
    std::atomic<bool> is_armed = false;
    std::set<int> ranks;
  } fault;
  DividedOptions divided{.division = {"ep2", {1, 2, 2, 1}}};
  divided.decode = Layout{1, 2, 1, 2};
  divided.experiment = [&](int rank) {
    return runtime::Experiment{.before_task = [&fault, rank](const schedule::Task& task) -> Status {
      const bool is_met = fault.is_armed && task.kind == schedule::TaskKind::kMoveExperts &&
                          task.layer == 1 && fault.ranks.contains(rank);
      return is_met ? Status(ResourceExhausted("planted")) : Status();
    }};
  };
  RunDivided(
      checkpoint, divided, {.max_step_tokens = 64, .num_kv_blocks = 1},
      [&](runtime::Transformer& transformer) {
        const auto step = [&](int first, int count) -> Result<std::vector<float>> {
          const device::SequenceStep sequence{
              .tokens =
                  std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
              .first_position = first,
              .blocks = blocks,
              .prompt_length = 16};
          std::vector<float> logits;
          const Status done =
              transformer.Forward({&sequence, 1}, [&](int, int, std::span<const float> row) {
                logits.insert(logits.end(), row.begin(), row.end());
              });
          if (!done) return done.error();
          return logits;
        };
        const auto prompt = step(0, 16);
        ASSERT_TRUE(prompt.ok()) << prompt.error().message;
        const auto token = step(16, 1);
        ASSERT_TRUE(token.ok()) << token.error().message;
        for (const std::set<int>& ranks : {std::set{0}, std::set{1}, std::set{0, 1}}) {
          SCOPED_TRACE(fmt::format("{} ranks, the first of them {}", ranks.size(), *ranks.begin()));
          fault.ranks = ranks;
          for (const bool to_decode : {false, true}) {
            const auto again = [&] { return to_decode ? step(16, 1) : step(0, 16); };
            fault.is_armed = true;
            const auto failed = again();
            fault.is_armed = false;
            ASSERT_FALSE(failed.ok());
            EXPECT_EQ(failed.error().kind, ErrorKind::kResourceExhausted);
            EXPECT_NE(failed.error().message.find("move_experts of layer 1"), std::string::npos)
                << failed.error().message;
            const auto next = again();
            ASSERT_TRUE(next.ok()) << next.error().message;
            EXPECT_TRUE(*next == (to_decode ? *token : *prompt));
          }
        }
      });
}

}  // namespace
}  // namespace convene
