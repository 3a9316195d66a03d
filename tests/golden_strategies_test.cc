// The schedule of a step under every strategy, as text; that all of them are valid; and that they
// send no more than the systems' volumes allow.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <sstream>

#include "cost/expected_sizes.h"
#include "schedule/hazards_test.h"
#include "strategy/expert_cuts.h"
#include "strategy/step.h"
#include "tests/golden_schedule.h"

namespace convene {
namespace {

using schedule::Schedule;
using schedule::SizeKind;
using schedule::TaskKind;
using strategy::BuildEncoderStep;
using strategy::BuildStep;
using strategy::ChunkCut;
using strategy::Layout;
using strategy::Pipeline;
using strategy::StepOptions;

struct SpecOptions {
  int num_layers = 1;
  int hidden_size = 16;
  int num_experts = 6;
  int top_k = 2;
  int shared_intermediate_size = 0;
  model::QkNorm qk_norm = model::QkNorm::kNone;
};

// The first layer is dense where there are several.
model::ModelSpec SpecOf(const SpecOptions& options) {
  model::ModelSpec spec;
  spec.vocab_size = 50;
  spec.hidden_size = options.hidden_size;
  for (int i = 0; i < options.num_layers; ++i) {
    model::LayerSpec layer;
    layer.attention.num_heads = 8;
    layer.attention.num_kv_heads = 4;
    layer.attention.head_dim = 4;
    layer.attention.value_dim = 4;
    layer.attention.qk_norm = options.qk_norm;
    if (i == 0 && options.num_layers > 1) {
      layer.dense_intermediate_size = 24;
    } else {
      layer.moe.emplace();
      layer.moe->num_experts = options.num_experts;
      layer.moe->top_k = options.top_k;
      layer.moe->intermediate_size = 8;
      layer.moe->shared_intermediate_size = options.shared_intermediate_size;
    }
    spec.layers.push_back(layer);
  }
  return spec;
}

model::ModelSpec EncoderDecoder() {
  model::ModelSpec spec = SpecOf({.num_layers = 2, .top_k = 1});
  spec.encoder_layers = spec.layers;
  for (model::LayerSpec& layer : spec.layers) layer.cross_attention = layer.attention;
  for (model::LayerSpec& layer : spec.encoder_layers) layer.attention.causal = false;
  return spec;
}

const Layout kDataAndExpertParallel = {1, 2, 2, 1};
const Layout kTensorParallel = {2, 1, 1, 2};

TEST(GoldenStrategies, Single) {
  ExpectGolden(BuildStep(SpecOf({.num_layers = 2}), {}), "single");
  ExpectGolden(BuildStep(SpecOf({.shared_intermediate_size = 12}), {}), "single_with_shared");
}

TEST(GoldenStrategies, TensorParallel) {
  ExpectGolden(BuildStep(SpecOf({}), {.roles = kTensorParallel}), "tensor_parallel");
  ExpectGolden(
      BuildStep(SpecOf({.qk_norm = model::QkNorm::kWholeProjection}), {.roles = kTensorParallel}),
      "tensor_parallel_whole_norm");
}

TEST(GoldenStrategies, ExpertParallel) {
  const model::ModelSpec spec = SpecOf({.num_layers = 2, .shared_intermediate_size = 12});
  ExpectGolden(BuildStep(spec, {.roles = kDataAndExpertParallel}), "expert_parallel");
  ExpectGolden(BuildStep(spec, {.roles = kDataAndExpertParallel, .pipeline = {.overlap = false}}),
               "expert_parallel_without_overlap");
}

TEST(GoldenStrategies, SlicedExperts) {
  ExpectGolden(BuildStep(SpecOf({.shared_intermediate_size = 12}), {.roles = Layout{1, 2, 1, 2}}),
               "sliced_experts");
}

TEST(GoldenStrategies, ExpertPipeline) {
  const model::ModelSpec spec = SpecOf({.shared_intermediate_size = 12});
  ExpectGolden(BuildStep(spec, {.roles = kDataAndExpertParallel,
                                .pipeline = {.chunks = 2, .cut = ChunkCut::kTokens}}),
               "expert_pipeline_of_tokens");
  ExpectGolden(BuildStep(spec, {.roles = kDataAndExpertParallel,
                                .pipeline = {.chunks = 2, .cut = ChunkCut::kExperts}}),
               "expert_pipeline_of_experts");
  ExpectGolden(
      BuildStep(spec, {.roles = kDataAndExpertParallel,
                       .pipeline = {.chunks = 2, .cut = ChunkCut::kTokens, .overlap = false}}),
      "expert_pipeline_without_overlap");
}

TEST(GoldenStrategies, MicroBatches) {
  const model::ModelSpec spec = SpecOf({.num_layers = 3});
  ExpectGolden(BuildStep(spec, {.roles = kDataAndExpertParallel, .pipeline = {.micro_batches = 2}}),
               "expert_parallel_of_two_micro_batches");
}

TEST(GoldenStrategies, EncoderAndDecoder) {
  const model::ModelSpec spec = EncoderDecoder();
  ExpectGolden(BuildEncoderStep(spec, {.roles = kTensorParallel}), "encoder");
  ExpectGolden(BuildStep(spec, {.roles = kTensorParallel}), "decoder_with_cross_attention");
}

// All layouts of 1 to `most` ranks.
std::vector<Layout> Layouts(int most) {
  std::vector<Layout> layouts;
  for (int ranks = 1; ranks <= most; ++ranks) {
    for (int tp = 1; tp <= ranks; ++tp) {
      for (int slices = 1; slices <= ranks; ++slices) {
        if (ranks % tp != 0 || ranks % slices != 0) continue;
        layouts.push_back({tp, ranks / tp, ranks / slices, slices});
      }
    }
  }
  return layouts;
}

std::vector<Pipeline> Pipelines() {
  std::vector<Pipeline> pipelines = {
      {.micro_batches = 2}, {2, ChunkCut::kTokens, true, 2}, {3, ChunkCut::kExperts, true, 3}};
  for (int chunks = 1; chunks <= 5; ++chunks) {
    for (const ChunkCut cut : {ChunkCut::kTokens, ChunkCut::kExperts}) {
      for (const bool overlap : {false, true}) pipelines.push_back({chunks, cut, overlap});
    }
  }
  return pipelines;
}

// A rank executes its part alone: all that it waits for is its own.
bool WaitsForItselfAlone(const Schedule& schedule) {
  for (const schedule::Task& task : schedule.tasks) {
    for (const schedule::TaskId before : task.after) {
      if (schedule.tasks[before].lane.rank != task.lane.rank) return false;
    }
  }
  return true;
}

TEST(Strategies, WithoutOverlapNothingComputesBesideAnExchange) {
  for (const Layout& layout : Layouts(4)) {
    for (Pipeline pipeline : Pipelines()) {
      pipeline.overlap = false;
      pipeline.micro_batches = 1;
      const Schedule schedule = BuildStep(SpecOf({.num_layers = 3, .shared_intermediate_size = 12}),
                                          {.roles = layout, .pipeline = pipeline});
      // Of each rank all tasks are one chain: each waits for the one before it.
      std::vector<std::vector<schedule::TaskId>> of_rank(layout.num_ranks());
      for (size_t id = 0; id < schedule.tasks.size(); ++id) {
        of_rank[schedule.tasks[id].lane.rank].push_back(static_cast<schedule::TaskId>(id));
      }
      for (const auto& tasks : of_rank) {
        for (size_t i = 1; i < tasks.size(); ++i) {
          const schedule::Task& task = schedule.tasks[tasks[i]];
          const schedule::Task& last = schedule.tasks[tasks[i - 1]];
          const bool waits =
              std::find(task.after.begin(), task.after.end(), tasks[i - 1]) != task.after.end();
          EXPECT_TRUE(waits || task.lane == last.lane) << Label(last) << ", " << Label(task);
        }
      }
    }
  }
}

TEST(Strategies, AllGiveValidSchedules) {
  const model::ModelSpec specs[] = {
      SpecOf({.num_layers = 2}),
      SpecOf({.num_layers = 2,
              .shared_intermediate_size = 12,
              .qk_norm = model::QkNorm::kWholeProjection}),
      EncoderDecoder(),
  };
  for (const Layout& layout : Layouts(8)) {
    for (const Pipeline& pipeline : Pipelines()) {
      for (const model::ModelSpec& spec : specs) {
        const StepOptions options{.roles = layout, .pipeline = pipeline};
        std::vector<Schedule> schedules = {BuildStep(spec, options)};
        if (spec.has_encoder() && pipeline.micro_batches == 1) {
          schedules.push_back(BuildEncoderStep(spec, options));
        }
        for (const Schedule& schedule : schedules) {
          const Status status = Validate(schedule);
          ASSERT_TRUE(status.ok()) << status.error().message;
          ASSERT_TRUE(WaitsForItselfAlone(schedule));
          EXPECT_EQ(schedule.num_ranks, layout.num_ranks());
        }
      }
    }
  }
}

// A line per task of the rank.
std::vector<std::string> LinesOf(const Schedule& schedule, int rank) {
  std::vector<std::string> lines;
  std::istringstream text(ToText(schedule));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(fmt::format("r{} ", rank))) lines.push_back(line);
  }
  return lines;
}

TEST(Strategies, BuildARanksTasksAloneAsTheyAreAmongAll) {
  const model::ModelSpec spec = SpecOf({.num_layers = 2, .shared_intermediate_size = 12});
  for (const Layout& layout : Layouts(4)) {
    for (const Pipeline& pipeline : Pipelines()) {
      const Schedule all = BuildStep(spec, {.roles = layout, .pipeline = pipeline});
      for (int rank = 0; rank < layout.num_ranks(); ++rank) {
        const Schedule own =
            BuildStep(spec, {.roles = layout, .pipeline = pipeline, .only_rank = rank});
        EXPECT_EQ(own.num_ranks, all.num_ranks);
        EXPECT_EQ(LinesOf(own, rank).size(), own.tasks.size());
        EXPECT_EQ(LinesOf(own, rank), LinesOf(all, rank));
      }
    }
  }
}

TEST(Strategies, HaveNoDependencyThatIsMissedOrThatTheRestDoesNotImply) {
  const model::ModelSpec specs[] = {
      SpecOf({.num_layers = 2,
              .shared_intermediate_size = 12,
              .qk_norm = model::QkNorm::kWholeProjection}),
      EncoderDecoder(),
  };
  int num_found = 0;
  for (const Layout& layout : Layouts(4)) {
    for (const Pipeline& pipeline : Pipelines()) {
      // Without overlap tasks also wait for what they do not touch.
      if (!pipeline.overlap) continue;
      for (const model::ModelSpec& spec : specs) {
        std::vector<Schedule> schedules = {
            BuildStep(spec, {.roles = layout, .pipeline = pipeline})};
        if (spec.has_encoder()) schedules.push_back(BuildEncoderStep(spec, {.roles = layout}));
        for (Schedule& schedule : schedules)
          num_found += schedule::CountDependenciesFound(schedule);
      }
    }
  }
  EXPECT_GT(num_found, 1000);
}

// Volumes: of a layer, summed over all ranks, with P the bytes of all tokens' activations.
struct Volumes {
  static constexpr int kHidden = 2048;
  static constexpr double kTokens = 1200;
  static constexpr double kActivations = kTokens * kHidden * 2;  // P

  Volumes(const Layout& layout_in, const Pipeline& pipeline_in, int num_experts, int top_k)
      : layout(layout_in),
        pipeline(pipeline_in),
        schedule(
            BuildStep(SpecOf({.hidden_size = kHidden, .num_experts = num_experts, .top_k = top_k}),
                      {.roles = layout, .pipeline = pipeline, .prunes_last_layer = false})),
        sizes(Expected(num_experts, top_k)) {}

  double LinkBytes(std::initializer_list<TaskKind> kinds) const {
    double sum = 0;
    for (const schedule::Task& task : schedule.tasks) {
      if (std::find(kinds.begin(), kinds.end(), task.kind) == kinds.end()) continue;
      sum += cost::Value(task.work.link_bytes,
                         [&](const schedule::Size& size) { return sizes.at(size); });
    }
    return sum;
  }
  double ExpertBytes() const {
    return LinkBytes({TaskKind::kCounts, TaskKind::kDispatch, TaskKind::kCombine});
  }
  // What all experts tasks compute.
  double Slots() const {
    double sum = 0;
    for (const schedule::Task& task : schedule.tasks) {
      if (task.kind != TaskKind::kExperts) continue;
      sum += sizes.at(
          {SizeKind::kSlots, task.layer, task.chunk, task.lane.rank, -1, task.micro_batch});
    }
    return sum;
  }
  // Ranks that a token visits.
  double Visits() const {
    double rows = 0;
    for (int rank = 1; rank < layout.num_ranks(); ++rank) {
      rows += sizes.at({SizeKind::kSent, 0, -1, 0, rank});
    }
    const int ranks = layout.num_ranks();
    return rows / (kTokens / ranks) * ranks / (ranks - 1);
  }

  cost::ExpectedSizes Expected(int num_experts, int top_k) const {
    const int ranks = layout.num_ranks();
    const bool by_experts = pipeline.chunks > 1 && pipeline.cut == ChunkCut::kExperts;
    const strategy::Roles roles = layout;
    cost::ExpectedRouting routing{
        .top_k = top_k,
        .shares = {cost::UniformShares(num_experts, top_k)},
        .experts = {},
        .token_chunks = by_experts ? 1 : pipeline.chunks,
        .micro_batches = pipeline.micro_batches,
        .rows = std::vector<double>(ranks, kTokens / ranks),
        .tokens = std::vector<double>(ranks, kTokens / layout.attention_dp)};
    for (int rank = 0; rank < ranks; ++rank) {
      const strategy::Part experts = roles.ExpertsOf(rank, num_experts);
      routing.experts.push_back(cost::CutIntoChunks(
          experts.first, by_experts ? strategy::ExpertEnds(pipeline, experts.size)
                                    : std::vector<int>{experts.size}));
    }
    return cost::ExpectedSizes(routing);
  }

  Layout layout;
  Pipeline pipeline;
  Schedule schedule;
  cost::ExpectedSizes sizes;
};

TEST(StrategyVolumes, TensorParallelAttentionSendsWhatARingAllReduceDoes) {
  for (const int ranks : {2, 3, 4, 8}) {
    const Volumes volumes({ranks, 1, 1, ranks}, {}, 8, 2);
    EXPECT_NEAR(volumes.LinkBytes({TaskKind::kGatherNormed, TaskKind::kScatterSums}),
                2 * Volumes::kActivations * (ranks - 1), 1);
  }
}

TEST(StrategyVolumes, GroupsOfSequencesDivideAttentionsVolume) {
  // Two groups of two ranks: each an all-reduce of half the tokens.
  const Volumes volumes({2, 2, 4, 1}, {}, 8, 2);
  EXPECT_NEAR(volumes.LinkBytes({TaskKind::kGatherNormed, TaskKind::kScatterSums}),
              2 * Volumes::kActivations, 1);
}

TEST(StrategyVolumes, ExpertParallelSendsATokenOnceToEachRankThatItVisits) {
  for (const int ranks : {2, 4, 8}) {
    for (const int top_k : {1, 2, 8}) {
      const double least = 2 * Volumes::kActivations * (ranks - 1) / ranks;
      const Volumes volumes({1, ranks, ranks, 1}, {}, 64, top_k);
      const double visits = volumes.Visits();
      EXPECT_GE(visits, 1 - 1e-4);
      EXPECT_LE(visits, std::min(ranks, top_k) + 1e-4);
      EXPECT_GE(volumes.ExpertBytes(), least * 0.999);
      EXPECT_LE(volumes.ExpertBytes(), visits * least * 1.05) << ranks << " ranks, top " << top_k;
    }
  }
}

TEST(StrategyVolumes, SlicesSendEveryTokenToAllOthersAndBack) {
  for (const int ranks : {2, 3, 4, 8}) {
    const Volumes volumes({1, ranks, 1, ranks}, {}, 64, 8);
    const double each_way = Volumes::kActivations * (ranks - 1);
    EXPECT_GE(volumes.ExpertBytes(), 2 * each_way * 0.999);
    EXPECT_LE(volumes.ExpertBytes(), 2 * each_way * 1.05);
  }
}

TEST(StrategyVolumes, APipelineSendsAndComputesNoMore) {
  for (const Layout& layout :
       {Layout{1, 2, 2, 1}, Layout{1, 4, 4, 1}, Layout{1, 4, 2, 2}, Layout{1, 2, 1, 2}}) {
    const Volumes whole(layout, {}, 64, 8);
    EXPECT_NEAR(whole.Slots(), Volumes::kTokens * 8 * layout.expert_tp, 1e-6);
    for (const Pipeline& pipeline : Pipelines()) {
      const Volumes cut(layout, pipeline, 64, 8);
      const double dispatched = cut.LinkBytes({TaskKind::kDispatch, TaskKind::kCombine});
      EXPECT_NEAR(dispatched / whole.LinkBytes({TaskKind::kDispatch, TaskKind::kCombine}), 1, 1e-6);
      EXPECT_NEAR(cut.Slots() / whole.Slots(), 1, 1e-6)
          << pipeline.chunks << (pipeline.cut == ChunkCut::kTokens ? " of tokens" : " of experts");
    }
  }
}

}  // namespace
}  // namespace convene
