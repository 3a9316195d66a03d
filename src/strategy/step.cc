#include "strategy/step.h"

#include "strategy/expert_parallel.h"
#include "strategy/expert_pipeline.h"
#include "strategy/single.h"
#include "strategy/sliced_experts.h"
#include "strategy/step_builder.h"
#include "strategy/tensor_parallel.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::SizeKind;
using schedule::Work;
using enum schedule::TaskKind;

void AddExperts(StepBuilder& step, const LayerWork& work, int layer) {
  const Layout& layout = step.layout();
  if (layout.num_ranks() == 1) return AddSingle(step, work, layer);
  if (step.options().pipeline.chunks > 1) return AddExpertPipeline(step, work, layer);
  if (layout.expert_ep == 1) return AddSlicedExperts(step, work, layer);
  AddExpertParallel(step, work, layer);
}

void AddLayers(StepBuilder& step) {
  for (int layer = 0; layer < std::ssize(step.layers()); ++layer) {
    const model::LayerSpec& spec = step.layers()[layer];
    const LayerWork work(step.spec(), spec, layer, step.options());
    AddAttention(step, work, layer, /*cross=*/false);
    if (spec.cross_attention) AddAttention(step, work, layer, /*cross=*/true);
    if (spec.moe) {
      AddExperts(step, work, layer);
    } else {
      step.Compute(kDense, {layer}, [&](int rank) { return work.Dense(rank); });
    }
  }
}

Work OfRows(int rank, double bytes) {
  return {.memory_bytes = {{bytes, {.kind = SizeKind::kRows, .from = rank}}}};
}

// To rank 0, whose task it returns.
schedule::TaskId GatherWanted(StepBuilder& step, double row_bytes, const RankTasks& after) {
  const auto to_first = [&](int rank) {
    if (rank == 0) return Work{};
    return Work{.link_bytes = {{row_bytes, {.kind = SizeKind::kWanted, .from = rank}}}};
  };
  return step.Collective(kGatherRows, LaneKind::kSend, {}, to_first, {after}).front();
}

}  // namespace

schedule::Schedule BuildStep(const model::ModelSpec& spec, const StepOptions& options) {
  StepBuilder step(spec, options, /*encoder=*/false);
  const double hidden = spec.hidden_size;
  step.Compute(kEmbed, {}, [&](int rank) { return OfRows(rank, hidden * 6); });
  AddLayers(step);
  const RankTasks normalize =
      step.Compute(kNormalize, {}, [&](int rank) { return OfRows(rank, hidden * 6); });
  std::vector<schedule::TaskId> before;
  if (step.num_ranks() > 1) {
    before.push_back(GatherWanted(step, hidden * options.bytes.activations, normalize));
  }
  Work head{.memory_bytes = {{hidden * spec.vocab_size * options.bytes.weights}}};
  for (int rank = 0; rank < step.num_ranks(); ++rank) {
    head.flops.push_back({2 * hidden * spec.vocab_size, {.kind = SizeKind::kWanted, .from = rank}});
  }
  step.ComputeOn(0, kHead, {}, std::move(head), std::move(before));
  return step.Take();
}

schedule::Schedule BuildEncoderStep(const model::ModelSpec& spec, const StepOptions& options) {
  StepBuilder step(spec, options, /*encoder=*/true);
  const double hidden = spec.hidden_size;
  step.Compute(kEmbed, {}, [&](int rank) { return OfRows(rank, hidden * 6); });
  AddLayers(step);
  const RankTasks normalize =
      step.Compute(kNormalize, {}, [&](int rank) { return OfRows(rank, hidden * 6); });
  std::vector<std::vector<schedule::TaskId>> before(static_cast<size_t>(step.num_ranks()));
  if (options.layout.attention_tp > 1) {
    const LayerWork work(spec, spec.encoder_layers.front(), -1, options);
    const RankTasks gather = step.Collective(
        kGatherNormed, LaneKind::kSend, {},
        [&](int rank) { return work.ExchangeOfRows(rank, options.bytes.activations); }, {normalize},
        [&](int rank) { return options.layout.attention_group(rank); });
    for (int rank = 0; rank < step.num_ranks(); ++rank) before[rank].push_back(gather[rank]);
  }
  // Its output where somebody wants to see it; always as float.
  if (step.num_ranks() > 1) before[0].push_back(GatherWanted(step, hidden * 4, normalize));
  const model::AttentionSpec& cross = *spec.layers.front().cross_attention;
  const double elements = hidden * (cross.kv_dim() + cross.value_width()) * spec.num_layers() /
                          options.layout.attention_tp;
  for (int rank = 0; rank < step.num_ranks(); ++rank) {
    step.ComputeOn(rank, kCrossStore, {},
                   {.flops = {{2 * elements, {.kind = SizeKind::kTokens, .from = rank}}},
                    .memory_bytes = {{elements * options.bytes.weights}}},
                   std::move(before[rank]));
  }
  return step.Take();
}

}  // namespace convene::strategy
