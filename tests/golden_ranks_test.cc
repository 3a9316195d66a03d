// Every way to divide a model among ranks against one rank with all of it, on the fixtures of all
// families: the same logits to the bit where the sums have the same order (data parallel attention,
// whole experts in aligned shares), within the bound of a few roundings otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "comm/threads/thread_group.h"
#include "kernels/choose_kernels.h"
#include "runtime/transformer.h"
#include "tests/golden_fixtures.h"
#include "weights/share.h"

namespace convene {
namespace {

using runtime::Formats;
using strategy::ChunkCut;

constexpr int kBlocksEach = 6;
constexpr int kNumSequences = 3;
constexpr int kGenerated = 6;

struct Division {
  std::string name;
  strategy::Layout layout;
  strategy::Pipeline pipeline = {};
  int pipeline_from_tokens = 0;
};

std::vector<Division> Divisions() {
  return {
      {"ep2", {1, 2, 2, 1}},
      {"ep2_without_overlap", {1, 2, 2, 1}, {1, ChunkCut::kTokens, false}},
      {"ep2_three_chunks_of_tokens", {1, 2, 2, 1}, {3, ChunkCut::kTokens, true}},
      {"ep2_two_groups_of_experts", {1, 2, 2, 1}, {2, ChunkCut::kExperts, true}},
      {"ep2_chunks_for_prompts_only", {1, 2, 2, 1}, {2, ChunkCut::kExperts, true}, 4},
      {"ep3", {1, 3, 3, 1}},
      {"ep4", {1, 4, 4, 1}},
      {"ep4_two_chunks_of_tokens", {1, 4, 4, 1}, {2, ChunkCut::kTokens, true}},
      {"slice2", {1, 2, 1, 2}},
      {"slice3", {1, 3, 1, 3}},
      {"tp2", {2, 1, 1, 2}},
      {"tp2_ep2", {2, 1, 2, 1}},
      {"tp4_ep2tp2", {4, 1, 2, 2}},
      {"tp2dp2_ep4", {2, 2, 4, 1}},
      {"dp4_ep2tp2", {1, 4, 2, 2}},
  };
}

// What a run gives: of each sequence the logits of its prompt, then tokens and their logits.
struct Answers {
  std::vector<std::vector<float>> prompt_logits;
  std::vector<std::vector<float>> answer_logits;
  std::vector<std::vector<int32_t>> tokens;
};

class Run {
 public:
  Run(runtime::Transformer& transformer, const std::vector<std::vector<int32_t>>& prompts,
      int num_groups)
      : transformer_(transformer), prompts_(prompts), num_groups_(num_groups) {
    for (int i = 0; i < kNumSequences; ++i) {
      for (int block = 0; block < kBlocksEach; ++block) {
        blocks_[i].push_back(block * kNumSequences + i);
      }
    }
    answers_.prompt_logits.resize(prompts.size());
    answers_.answer_logits.resize(prompts.size());
    answers_.tokens.resize(prompts.size());
  }

  Answers Execute() {
    // Two steps of prompt, the first of them of unequal lengths on the groups.
    std::vector<int> positions(prompts_.size(), 0);
    Step(positions, 130, answers_.prompt_logits);
    Step(positions, 1000, answers_.prompt_logits);
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const auto& logits = answers_.prompt_logits[i];
      const size_t vocab = logits.size() / prompts_[i].size();
      answers_.tokens[i].push_back(Best(std::span(logits).last(vocab)));
    }
    for (int step = 1; step < kGenerated; ++step) Generate(step);
    return answers_;
  }

 private:
  static int32_t Best(std::span<const float> logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  void Step(std::vector<int>& positions, int most, std::vector<std::vector<float>>& logits) {
    std::vector<runtime::SequenceStep> step;
    std::vector<size_t> sequences;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const int count = std::min<int>(most, static_cast<int>(prompts_[i].size()) - positions[i]);
      if (count == 0) continue;
      step.push_back({.tokens = std::span(prompts_[i]).subspan(positions[i], count),
                      .first_position = positions[i],
                      .blocks = blocks_[i],
                      .prompt_length = static_cast<int>(prompts_[i].size()),
                      .group = static_cast<int>(i) % num_groups_});
      sequences.push_back(i);
      positions[i] += count;
    }
    transformer_.Forward(step, [&](int idx, int, std::span<const float> row) {
      auto& all = logits[sequences[idx]];
      all.insert(all.end(), row.begin(), row.end());
    });
  }

  void Generate(int step_idx) {
    std::vector<runtime::SequenceStep> step;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const auto length = static_cast<int>(prompts_[i].size());
      step.push_back({.tokens = std::span(answers_.tokens[i]).last(1),
                      .first_position = length + step_idx - 1,
                      .blocks = blocks_[i],
                      .prompt_length = length,
                      .group = static_cast<int>(i) % num_groups_});
    }
    std::vector<int32_t> next(prompts_.size());
    transformer_.Forward(step, [&](int idx, int, std::span<const float> row) {
      answers_.answer_logits[idx].insert(answers_.answer_logits[idx].end(), row.begin(), row.end());
      next[idx] = Best(row);
    });
    for (size_t i = 0; i < prompts_.size(); ++i) answers_.tokens[i].push_back(next[i]);
  }

  runtime::Transformer& transformer_;
  const std::vector<std::vector<int32_t>>& prompts_;
  int num_groups_;
  std::vector<int32_t> blocks_[kNumSequences];
  Answers answers_;
};

Answers RunDivided(const checkpoint::Checkpoint& checkpoint, const Formats& formats,
                   const Division& division, comm::WireFormat wire,
                   const std::vector<std::vector<int32_t>>& prompts) {
  const kernels::KernelSet& kernels = **kernels::ChooseKernels();
  Answers answers;
  const auto run_rank = [&](comm::Group* group) {
    const int rank = group == nullptr ? 0 : group->rank();
    runtime::TransformerOptions options{.max_step_tokens = 400,
                                        .num_kv_blocks = kBlocksEach * kNumSequences};
    options.parallel = {.layout = division.layout,
                        .pipeline = division.pipeline,
                        .pipeline_from_tokens = division.pipeline_from_tokens,
                        .wire = wire,
                        .group = group,
                        .whole_spec = &checkpoint.spec()};
    LoadedFixture model(checkpoint, formats, kernels, 1, options,
                        weights::ShareOf(division.layout, rank));
    if (rank != 0) return model.transformer().FollowSteps();
    answers = Run(model.transformer(), prompts, division.layout.attention_dp).Execute();
    model.transformer().EndSteps();
  };
  if (division.layout.num_ranks() == 1) {
    run_rank(nullptr);
  } else {
    comm::RunOnThreads(division.layout.num_ranks(), [&](comm::Group& group) { run_rank(&group); });
  }
  return answers;
}

bool Fits(const checkpoint::Checkpoint& checkpoint, const Formats& formats,
          const Division& division) {
  return weights::LocalSpec(checkpoint.spec(), weights::ShareOf(division.layout, 0),
                            formats.weights)
      .ok();
}

// Whether a rank's sums are whole branches of the tree that one rank sums along.
bool IsExact(const model::ModelSpec& spec, const strategy::Layout& layout) {
  if (layout.attention_tp > 1 || layout.expert_tp > 1) return false;
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const model::LayerSpec& layer) {
    if (!layer.moe) return true;
    const int experts = layer.moe->num_experts;
    return experts % layout.expert_ep == 0 &&
           std::has_single_bit(static_cast<unsigned>(experts / layout.expert_ep));
  });
}

std::vector<std::filesystem::path> Fixtures() {
  std::vector<std::filesystem::path> fixtures;
  for (const auto& entry :
       std::filesystem::directory_iterator(CONVENE_SOURCE_DIR "/tests/golden/models")) {
    if (std::filesystem::exists(entry.path() / "prompt_300.tokens.npy")) {
      fixtures.push_back(entry.path());
    }
  }
  std::sort(fixtures.begin(), fixtures.end());
  return fixtures;
}

class GoldenRanks : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override {
    auto checkpoint = checkpoint::Checkpoint::Open(GetParam().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
    for (const char* name : {"prompt_300", "prompt_17", "prompt_1"}) {
      prompts_.push_back(ReadNpy<int32_t>(GetParam() / (std::string(name) + ".tokens.npy")));
    }
  }

  // Relative to the norm of a position's logits.
  static double Difference(const std::vector<float>& a, const std::vector<float>& b) {
    return NormOfDifference(a, b) / NormOf(b);
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::vector<std::vector<int32_t>> prompts_;
};

TEST_P(GoldenRanks, ComputeWhatOneRankDoes) {
  const Formats formats = runtime::DefaultFormats(kernels::WeightFormat::kF32);
  const Answers one =
      RunDivided(*checkpoint_, formats, {"one", {}}, comm::WireFormat::kF32, prompts_);
  for (const Division& division : Divisions()) {
    if (!Fits(*checkpoint_, formats, division)) continue;
    SCOPED_TRACE(division.name);
    RecordProperty(division.name, "run");
    const Answers divided =
        RunDivided(*checkpoint_, formats, division, comm::WireFormat::kF32, prompts_);
    EXPECT_EQ(divided.tokens, one.tokens);
    for (size_t i = 0; i < prompts_.size(); ++i) {
      ASSERT_EQ(divided.prompt_logits[i].size(), one.prompt_logits[i].size());
      if (IsExact(checkpoint_->spec(), division.layout)) {
        EXPECT_EQ(divided.prompt_logits[i], one.prompt_logits[i]) << "sequence " << i;
        EXPECT_EQ(divided.answer_logits[i], one.answer_logits[i]) << "sequence " << i;
      } else {
        // Sums of float32 in another order.
        EXPECT_LT(Difference(divided.prompt_logits[i], one.prompt_logits[i]), 1e-5);
        EXPECT_LT(Difference(divided.answer_logits[i], one.answer_logits[i]), 1e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenRanks, testing::ValuesIn(Fixtures()),
                         [](const auto& fixture) { return fixture.param.filename().string(); });

}  // namespace
}  // namespace convene
