// What the tests of many ranks share: the divisions to try, and running a fixture divided among
// ranks that are threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/threads/thread_group.h"
#include "kernels/choose_kernels.h"
#include "runtime/transformer.h"
#include "tests/golden_fixtures.h"
#include "weights/share.h"

namespace convene {

struct Division {
  std::string name;
  strategy::Layout layout;
  strategy::Pipeline pipeline = {};
  int chunks_from_tokens = 0;
  // Of each step by itself; empty: all have `pipeline`.
  std::function<strategy::Pipeline(const strategy::StepLoad&)> pipeline_of = {};
};

inline Division OneRank() { return {"one", {}}; }

inline std::vector<Division> Divisions() {
  using strategy::ChunkCut;
  return {
      {"one_with_chunks", {}, {3, ChunkCut::kExperts, true}},
      {"one_with_two_micro_batches", {}, {.micro_batches = 2}},
      {"ep2", {1, 2, 2, 1}},
      {"ep2_two_micro_batches", {1, 2, 2, 1}, {.micro_batches = 2}},
      {"ep2_three_micro_batches_of_two_chunks", {1, 2, 2, 1}, {2, ChunkCut::kTokens, true, 3}},
      {"ep2_without_overlap", {1, 2, 2, 1}, {1, ChunkCut::kTokens, false}},
      {"ep2_three_chunks_of_tokens", {1, 2, 2, 1}, {3, ChunkCut::kTokens, true}},
      {"ep2_two_groups_of_experts", {1, 2, 2, 1}, {2, ChunkCut::kExperts, true}},
      {"ep2_chunks_for_prompts_only", {1, 2, 2, 1}, {2, ChunkCut::kExperts, true}, 4},
      {"ep3", {1, 3, 3, 1}},
      {"ep4", {1, 4, 4, 1}},
      {"ep4_two_chunks_of_tokens", {1, 4, 4, 1}, {2, ChunkCut::kTokens, true}},
      {"ep3to1", {1, 2, 2, 1, {3, 1}}},
      {"ep3to1_two_groups_of_experts", {1, 2, 2, 1, {3, 1}}, {2, ChunkCut::kExperts, true}},
      {"ep1to3", {1, 2, 2, 1, {1, 3}}},
      {"ep1to3_two_micro_batches", {1, 2, 2, 1, {1, 3}}, {.micro_batches = 2}},
      {"ep2to1to1", {1, 3, 3, 1, {2, 1, 1}}},
      {"ep2to1to1_two_chunks_of_tokens", {1, 3, 3, 1, {2, 1, 1}}, {2, ChunkCut::kTokens, true}},
      {"slice2", {1, 2, 1, 2}},
      {"slice2_two_micro_batches", {1, 2, 1, 2}, {.micro_batches = 2}},
      {"slice2_two_chunks_of_tokens", {1, 2, 1, 2}, {2, ChunkCut::kTokens, true}},
      {"slice3", {1, 3, 1, 3}},
      {"tp2", {2, 1, 1, 2}},
      {"tp2_ep2", {2, 1, 2, 1}},
      {"tp2_two_micro_batches", {2, 1, 1, 2}, {.micro_batches = 2}},
      {"tp2dp2_ep4_two_micro_batches", {2, 2, 4, 1}, {.micro_batches = 2}},
      {"tp4_ep2tp2", {4, 1, 2, 2}},
      {"tp2dp2_ep4", {2, 2, 4, 1}},
      {"dp4_ep2tp2_five_groups_of_experts", {1, 4, 2, 2}, {5, ChunkCut::kExperts, true}},
      {"tp2_head", {.attention_tp = 2, .expert_tp = 2, .divides_head = true}},
      {"tp2_shared", {.attention_tp = 2, .expert_tp = 2, .divides_shared = true}},
      {"tp2_dense", {.attention_tp = 2, .expert_tp = 2, .divides_dense = true}},
      {"tp2_ep2_dense_two_micro_batches",
       {.attention_tp = 2, .expert_ep = 2, .divides_dense = true},
       {.micro_batches = 2}},
      {"tp2dp2_ep4_dense_head",
       {.attention_tp = 2,
        .attention_dp = 2,
        .expert_ep = 4,
        .divides_head = true,
        .divides_dense = true}},
      {"slice3_shared_head",
       {.attention_dp = 3, .expert_tp = 3, .divides_head = true, .divides_shared = true}},
      {"slice2_shared_two_micro_batches",
       {.attention_dp = 2, .expert_tp = 2, .divides_shared = true},
       {.micro_batches = 2}},
      {"ep2_head", {.attention_dp = 2, .expert_ep = 2, .divides_head = true}},
      {"ep2_head_two_micro_batches",
       {.attention_dp = 2, .expert_ep = 2, .divides_head = true},
       {.micro_batches = 2}},
      {"ep3_head", {.attention_dp = 3, .expert_ep = 3, .divides_head = true}},
      {"pp2", {.stages = 2}},
      {"pp2_three_micro_batches", {.stages = 2}, {.micro_batches = 3}},
      {"pp2_without_overlap", {.stages = 2}, {.overlap = false}},
      {"pp1to2", {.stages = 2, .stage_weights = {1, 2}}, {.micro_batches = 2}},
      {"pp3_four_micro_batches", {.stages = 3}, {.micro_batches = 4}},
  };
}

struct DividedOptions {
  runtime::Formats formats = runtime::DefaultFormats(kernels::WeightFormat::kF32);
  Division division = OneRank();
  std::optional<strategy::Layout> decode = {};  // in steps of generated tokens alone
  bool keeps_both = false;                      // divisions, in memory
  bool loads_experts = false;                   // from an int4 backup
  // Told by each rank, on its thread, before the first step.
  std::function<void(int rank, weights::WeightStore&)> loaded = {};
  comm::WireFormat wire = comm::WireFormat::kF32;
  bool returns_fp8 = false;
  int num_threads = 1;  // of each rank
  bool record = false;  // rank 0 is told of each step
  std::function<runtime::Experiment(int rank)> experiment = {};
  std::function<std::unique_ptr<weights::WeightStore>(int rank, weights::ModelWeights&)> store =
      {};  // none: resident
  DeviceOf device = device::MakeCpuDevice;
};

inline weights::Share ShareOf(const DividedOptions& divided, int rank) {
  const strategy::Layout& layout = divided.division.layout;
  if (!divided.decode) return weights::ShareOf(layout, rank);
  return weights::ShareOf(layout, *divided.decode, divided.keeps_both, rank);
}

// Loads the fixture on every rank and has rank 0 call `lead`, which the others follow.
inline void RunDivided(const checkpoint::Checkpoint& checkpoint, const DividedOptions& divided,
                       runtime::TransformerOptions options,
                       const std::function<void(runtime::Transformer&)>& lead) {
  const kernels::KernelSet& kernels = **kernels::ChooseKernels();
  const auto run_rank = [&](comm::Group* group) {
    runtime::TransformerOptions own = options;
    own.parallel = {.roles = divided.division.layout,
                    .pipeline = divided.division.pipeline,
                    .pipeline_of = divided.division.pipeline_of,
                    .chunks_from_tokens = divided.division.chunks_from_tokens,
                    .wire = divided.wire,
                    .returns_fp8 = divided.returns_fp8,
                    .record = divided.record,
                    .group = group,
                    .whole_spec = &checkpoint.spec()};
    const int rank = own.parallel.rank();
    if (divided.decode) own.parallel.decode_roles = *divided.decode;
    own.parallel.loads_experts = divided.loads_experts;
    if (divided.experiment) own.parallel.experiment = divided.experiment(rank);
    StoreOf store_of;
    if (divided.store) store_of = std::bind_front(divided.store, rank);
    LoadedFixture model(checkpoint, divided.formats, kernels, divided.num_threads, own,
                        ShareOf(divided, rank), store_of, divided.device);
    if (divided.loads_experts) {
      const auto made = model.transformer().MakeBackup();
      CHECK(made.ok(), "{}", made.error().message);
    }
    if (divided.loaded) {
      divided.loaded(rank, model.store());
      if (group != nullptr) group->Barrier("loading");
    }
    if (rank != 0) return model.transformer().FollowSteps();
    lead(model.transformer());
    model.transformer().EndSteps();
  };
  const int num_ranks = divided.division.layout.num_ranks();
  if (num_ranks == 1) return run_rank(nullptr);
  comm::RunOnThreads(num_ranks, [&](comm::Group& group) { run_rank(&group); });
}

inline bool Fits(const checkpoint::Checkpoint& checkpoint, const DividedOptions& divided) {
  return weights::WidestSpec(checkpoint.spec(), ShareOf(divided, 0), divided.formats.weights).ok();
}

// Whether a rank's sums are whole branches of the tree that one rank sums along.
inline bool IsExact(const model::ModelSpec& spec, const strategy::Layout& layout) {
  if (layout.attention_tp > 1 || layout.expert_tp > 1) return false;
  if (layout.stages > 1) return true;
  const strategy::Roles roles = layout;
  const strategy::ExpertSplit& split = roles.expert_split();
  const auto is_exact = [&](const model::LayerSpec& layer) {
    // One expert's output is no sum.
    if (!layer.moe || layer.moe->top_k == 1) return true;
    for (int share = 0; share < split.num_shares(); ++share) {
      const strategy::Part part = split.experts(share, layer.moe->num_experts);
      if (!std::has_single_bit(static_cast<unsigned>(part.size)) || part.first % part.size != 0) {
        return false;
      }
    }
    return true;
  };
  return std::all_of(spec.layers.begin(), spec.layers.end(), is_exact) &&
         std::all_of(spec.encoder_layers.begin(), spec.encoder_layers.end(), is_exact);
}

inline int32_t BestToken(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// What a run gives: of each sequence the logits of its prompt, then tokens and their logits.
struct Answers {
  std::vector<std::vector<float>> prompt_logits;
  std::vector<std::vector<float>> answer_logits;
  std::vector<std::vector<int32_t>> tokens;
};

struct Work {
  std::vector<std::vector<int32_t>> prompts;
  // Most tokens of each prompt in the first steps; the last of them in all that follow.
  std::vector<int> most_tokens = {130, 1000};
  int num_generated = 6;
  bool all_in_first_group = false;
  bool takes_largest = false;  // of the logits of generated tokens, and does not look at others
  bool tells_what_follows = false;  // whether the last step of prompts says that decode follows
  std::vector<strategy::Pipeline> pipelines = {};  // in turn, one before each step; none: stays

  int num_tokens() const {
    int sum = 0;
    for (const auto& prompt : prompts) sum += static_cast<int>(prompt.size());
    return sum;
  }
  // Of the KV cache, for each sequence.
  int num_blocks_each() const {
    size_t longest = 0;
    for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
    return (static_cast<int>(longest) + num_generated) / device::kKvBlockTokens + 1;
  }
};

// Prompts in steps, then greedy tokens of all sequences together.
class PromptsRun {
 public:
  PromptsRun(runtime::Transformer& transformer, const Work& work, int num_groups)
      : transformer_(transformer), work_(work), num_groups_(num_groups) {
    const size_t count = work.prompts.size();
    blocks_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      for (int block = 0; block < work.num_blocks_each(); ++block) {
        blocks_[i].push_back(static_cast<int32_t>(size_t(block) * count + i));
      }
    }
    answers_.prompt_logits.resize(count);
    answers_.answer_logits.resize(count);
    answers_.tokens.resize(count);
    positions_.resize(count);
  }

  Answers Execute() {
    for (size_t step = 0; ReadPrompts(MostTokens(step)); ++step) UseNextPipeline();
    for (size_t i = 0; i < work_.prompts.size(); ++i) {
      const auto& logits = answers_.prompt_logits[i];
      const size_t vocab = logits.size() / work_.prompts[i].size();
      answers_.tokens[i].push_back(BestToken(std::span(logits).last(vocab)));
    }
    for (int step = 1; step < work_.num_generated; ++step) {
      UseNextPipeline();
      Generate(step);
    }
    return answers_;
  }

 private:
  void UseNextPipeline() {
    if (work_.pipelines.empty()) return;
    transformer_.UsePipeline(work_.pipelines[next_pipeline_++ % work_.pipelines.size()]);
  }
  int MostTokens(size_t step) const {
    return work_.most_tokens[std::min(step, work_.most_tokens.size() - 1)];
  }
  int GroupOf(size_t i) const {
    return work_.all_in_first_group ? 0 : static_cast<int>(i) % num_groups_;
  }

  // False once all prompts are read.
  bool ReadPrompts(int most) {
    std::vector<device::SequenceStep> step;
    std::vector<size_t> sequences;
    for (size_t i = 0; i < work_.prompts.size(); ++i) {
      const auto& prompt = work_.prompts[i];
      const int count = std::min(most, static_cast<int>(prompt.size()) - positions_[i]);
      if (count == 0) continue;
      step.push_back(
          {.tokens = std::span(prompt).subspan(size_t(positions_[i]), static_cast<size_t>(count)),
           .first_position = positions_[i],
           .blocks = blocks_[i],
           .prompt_length = static_cast<int>(prompt.size()),
           .group = GroupOf(i)});
      sequences.push_back(i);
      positions_[i] += count;
    }
    if (step.empty()) return false;
    const auto sink = [&](int idx, int, std::span<const float> row) {
      auto& all = answers_.prompt_logits[sequences[idx]];
      all.insert(all.end(), row.begin(), row.end());
    };
    ExpectDone(transformer_.Forward(step, sink, {}, work_.tells_what_follows && IsThrough()));
    return true;
  }

  // With the prompts.
  bool IsThrough() const {
    for (size_t i = 0; i < work_.prompts.size(); ++i) {
      if (positions_[i] < std::ssize(work_.prompts[i])) return false;
    }
    return true;
  }

  void Generate(int step_idx) {
    std::vector<device::SequenceStep> step;
    for (size_t i = 0; i < work_.prompts.size(); ++i) {
      const auto length = static_cast<int>(work_.prompts[i].size());
      step.push_back({.tokens = std::span(answers_.tokens[i]).last(1),
                      .first_position = length + step_idx - 1,
                      .blocks = blocks_[i],
                      .prompt_length = length,
                      .largest_suffices = work_.takes_largest,
                      .group = GroupOf(i)});
    }
    std::vector<int32_t> next(work_.prompts.size());
    ExpectDone(transformer_.Forward(step, [&](int idx, int, const runtime::Logits& logits) {
      if (logits.is_largest_alone()) {
        next[idx] = logits.largest();
        return;
      }
      const std::span<const float> row = logits;
      answers_.answer_logits[idx].insert(answers_.answer_logits[idx].end(), row.begin(), row.end());
      next[idx] = BestToken(row);
    }));
    for (size_t i = 0; i < next.size(); ++i) answers_.tokens[i].push_back(next[i]);
  }

  runtime::Transformer& transformer_;
  const Work& work_;
  int num_groups_;
  size_t next_pipeline_ = 0;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<int> positions_;  // read so far
  Answers answers_;
};

// `observer` sees the steps where they are recorded.
inline Answers RunPrompts(const checkpoint::Checkpoint& checkpoint, const DividedOptions& divided,
                          const Work& work, const runtime::StepObserver& observer = {}) {
  Answers answers;
  const auto num_sequences = static_cast<int>(work.prompts.size());
  RunDivided(checkpoint, divided,
             {.max_step_tokens = work.num_tokens(),
              .num_kv_blocks = work.num_blocks_each() * num_sequences},
             [&](runtime::Transformer& transformer) {
               transformer.ObserveSteps(observer);
               answers =
                   PromptsRun(transformer, work, divided.division.layout.attention_dp).Execute();
             });
  return answers;
}

// Relative to the norm of the logits.
inline double RelativeDifference(std::span<const float> a, std::span<const float> b) {
  return NormOfDifference(a, b) / NormOf(b);
}

inline void ExpectSameAnswers(const Answers& actual, const Answers& expected, bool to_the_bit) {
  EXPECT_EQ(actual.tokens, expected.tokens);
  for (size_t i = 0; i < expected.tokens.size(); ++i) {
    ASSERT_EQ(actual.prompt_logits[i].size(), expected.prompt_logits[i].size());
    if (to_the_bit) {
      EXPECT_TRUE(actual.prompt_logits[i] == expected.prompt_logits[i]) << "sequence " << i;
      EXPECT_TRUE(actual.answer_logits[i] == expected.answer_logits[i]) << "sequence " << i;
    } else {
      // Sums of float32 in another order.
      EXPECT_LT(RelativeDifference(actual.prompt_logits[i], expected.prompt_logits[i]), 1e-5);
      EXPECT_LT(RelativeDifference(actual.answer_logits[i], expected.answer_logits[i]), 1e-5);
    }
  }
}

// A fixture with its prompts, to be divided.
class DividedFixture : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override {
    auto checkpoint = checkpoint::Checkpoint::Open(GetParam().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
    for (const char* name : {"prompt_300", "prompt_17", "prompt_1"}) {
      prompts_.push_back(ReadNpy<int32_t>(GetParam() / (std::string(name) + ".tokens.npy")));
    }
  }

  // All of `divisions` that fit, `divided` otherwise.
  void ExpectWhatOneRankComputes(DividedOptions divided, const Work& work,
                                 const std::vector<Division>& divisions) {
    DividedOptions alone = divided;
    alone.division = OneRank();
    alone.num_threads = 1;
    const Answers one = RunPrompts(*checkpoint_, alone, work);
    for (const Division& division : divisions) {
      divided.division = division;
      if (!Fits(*checkpoint_, divided)) continue;
      const bool is_exact = IsExact(checkpoint_->spec(), division.layout);
      // Another order of sums is roundings of activations to bf16 or int8 apart.
      if (!is_exact && divided.formats.activations != kernels::ActivationFormat::kF32) continue;
      SCOPED_TRACE(division.name);
      ExpectSameAnswers(RunPrompts(*checkpoint_, divided, work), one, is_exact);
    }
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::vector<std::vector<int32_t>> prompts_;
};

// The fixtures with prompts; those of encoder-decoders have inputs.
inline std::vector<std::filesystem::path> PromptFixtures() {
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

inline std::vector<std::filesystem::path> FixturesNamed(const std::vector<std::string>& names) {
  std::vector<std::filesystem::path> fixtures;
  for (const std::string& name : names) {
    fixtures.push_back(std::filesystem::path(CONVENE_SOURCE_DIR "/tests/golden/models") / name);
  }
  return fixtures;
}

}  // namespace convene
