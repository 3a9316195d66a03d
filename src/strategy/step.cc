#include "strategy/step.h"

#include <optional>

#include "base/check.h"
#include "strategy/disaggregated_experts.h"
#include "strategy/ends.h"
#include "strategy/expert_parallel.h"
#include "strategy/expert_pipeline.h"
#include "strategy/layer_pipeline.h"
#include "strategy/paged_experts.h"
#include "strategy/single.h"
#include "strategy/sliced_experts.h"
#include "strategy/spilled_kv.h"
#include "strategy/step_builder.h"
#include "strategy/tensor_parallel.h"
#include "strategy/transition.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::SizeKind;
using schedule::Work;
using enum schedule::TaskKind;

void AddExperts(StepBuilder& step, const LayerWork& work, int layer) {
  if (step.num_ranks() == 1) {
    AddSingle(step, work, layer);
    return;
  }
  if (step.options().pipeline.chunks > 1) return AddExpertPipeline(step, work, layer);
  if (step.roles().expert_split().num_shares() == 1) return AddSlicedExperts(step, work, layer);
  AddExpertParallel(step, work, layer);
}

// `embedded`: the step's first tasks. Returns the last ones of ranks with experts alone.
RankTasks AddLayers(StepBuilder& step, const RankTasks& embedded) {
  std::optional<PagedExperts> paged;
  if (step.options().paging) paged.emplace(step);
  std::optional<SpilledAttention> spilled;
  if (step.options().spilled_kv) spilled.emplace(step, embedded);
  std::optional<DisaggregatedStage> disaggregated;
  if (!step.roles().are_whole()) disaggregated.emplace(step);
  for (int layer = 0; layer < std::ssize(step.layers()); ++layer) {
    const model::LayerSpec& spec = step.layers()[layer];
    const bool prunes = step.options().prunes_last_layer && !step.is_encoder() &&
                        layer + 1 == std::ssize(step.layers());
    const LayerWork work(step.spec(), spec, layer, step.options(), prunes);
    if (spilled) {
      spilled->AddLayer(work, layer);
    } else {
      AddAttention(step, work, layer, /*cross=*/false);
    }
    if (spec.cross_attention) AddAttention(step, work, layer, /*cross=*/true);
    if (spec.moe && paged) {
      paged->AddLayer(work, layer);
    } else if (spec.moe && disaggregated) {
      disaggregated->AddLayer(work, layer);
    } else if (spec.moe) {
      AddExperts(step, work, layer);
    } else {
      AddDense(step, work, layer);
    }
  }
  return disaggregated ? disaggregated->returned() : RankTasks();
}

// From the tokens to the output's norm. Returns the last task of each rank: a rank that says how it
// has fared must have done all that can fail.
RankTasks AddStack(StepBuilder& step) {
  step.UseRanks(&Role::owns_rows);
  const RankTasks returned = AddLayers(step, AddEmbedding(step));
  RankTasks last = AddFinalNorm(step);
  step.UseAllRanks();
  for (size_t i = 0; i < returned.size(); ++i) {
    if (last[i] < 0) last[i] = returned[i];
  }
  return last;
}

// Layers on several ranks. The rows for the head are gathered behind all micro-batches, since a
// lane of a rank between the ends would otherwise wait for one's before it hands the next one on.
schedule::Schedule BuildLayerPipeline(const model::ModelSpec& spec, const StepOptions& options) {
  CHECK(!spec.has_encoder() && options.pipeline.chunks == 1 && !options.paging && !options.loads,
        "a stage has its experts in memory, and whole");
  StepBuilder step(spec, options, /*encoder=*/false);
  step.PauseOnlyWhereAsked();
  const std::vector<RankTasks> normed =
      step.BuildMicroBatches([&] { return AddLayerPipeline(step); });
  std::vector<RankTasks> rows;
  for (int i = 0; i < options.pipeline.micro_batches; ++i) {
    step.UseMicroBatch(i);
    rows.push_back(GatherWanted(step, spec.hidden_size * options.bytes.activations, normed[i]));
  }
  step.UseMicroBatch(-1);
  AddHead(step, rows);
  return step.Take();
}

}  // namespace

Pipeline PipelineOf(const StepOptions& options) {
  if (!options.paging || options.roles.num_ranks() == 1) return options.pipeline;
  return {.chunks = options.paging->chunks,
          .cut = ChunkCut::kExperts,
          .overlap = options.pipeline.overlap};
}

schedule::Schedule BuildStep(const model::ModelSpec& spec, const StepOptions& options) {
  if (options.roles.num_stages() > 1) return BuildLayerPipeline(spec, options);
  CHECK(!options.roles.divides_shared() || (options.pipeline.chunks == 1 && !options.paging),
        "slices of shared experts are in memory, and not cut into chunks");
  StepBuilder step(spec, options, /*encoder=*/false);
  if (!options.roles.are_whole()) {
    CHECK(!spec.has_encoder(), "an encoder's inputs stay whole");
    CHECK(options.pipeline.cut == ChunkCut::kTokens && options.pipeline.overlap,
          "chunks of disaggregated experts are of tokens, and overlap");
    step.PauseOnlyWhereAsked();
  }
  std::vector<RankTasks> rows = step.BuildMicroBatches([&] {
    const RankTasks normed = AddStack(step);
    if (step.num_ranks() == 1) return normed;
    return GatherWanted(step, spec.hidden_size * options.bytes.activations, normed);
  });
  // One rank's rows come from its own lane.
  if (step.num_ranks() == 1) rows.clear();
  AddHead(step, rows);
  schedule::Schedule built = step.Take();
  if (options.loads) AppendLoads(spec, *options.loads, options.only_rank, built);
  return built;
}

schedule::Schedule BuildEncoderStep(const model::ModelSpec& spec, const StepOptions& options) {
  CHECK(options.pipeline.micro_batches == 1, "an encoder's inputs stay whole");
  StepBuilder step(spec, options, /*encoder=*/true);
  const double hidden = spec.hidden_size;
  const RankTasks normalize = AddStack(step);
  std::vector<RankTasks> before;
  const Roles& roles = options.roles;
  if (roles.attention_parts() > 1) {
    const LayerWork work(spec, spec.encoder_layers.front(), -1, options);
    before.push_back(step.Collective(
        kGatherNormed, LaneKind::kSend, {},
        [&](int rank) { return work.GatherNormed(rank, options.bytes.activations); }, {normalize},
        [&](int rank) { return roles.of(rank).attention->group; }));
  }
  // Its output where somebody wants to see it; always as float.
  std::vector<RankTasks> before_first = before;
  if (step.num_ranks() > 1) before_first.push_back(GatherWanted(step, hidden * 4, normalize));
  const model::AttentionSpec& cross = *spec.layers.front().cross_attention;
  for (int rank = 0; rank < step.num_ranks(); ++rank) {
    const std::optional<AttentionRole>& role = roles.of(rank).attention;
    const int heads = role ? role->CacheOf(cross).heads.size : 0;
    const double elements = hidden * heads * (cross.head_dim + cross.value_dim) * spec.num_layers();
    const auto work = [&] {
      return Work{.flops = {{2 * elements, {.kind = SizeKind::kTokens, .from = rank}}},
                  .memory_bytes = {{elements * options.bytes.weights}}};
    };
    step.ComputeOn(rank, kCrossStore, {}, work, rank == 0 ? before_first : before);
  }
  return step.Take();
}

}  // namespace convene::strategy
