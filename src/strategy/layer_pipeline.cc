#include "strategy/layer_pipeline.h"

#include "strategy/ends.h"
#include "strategy/single.h"
#include "strategy/tensor_parallel.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

using schedule::SizeKind;
using schedule::Work;
using enum schedule::TaskKind;

// Puts the tasks of `some` in their ranks' places.
void Merge(const RankTasks& some, RankTasks& all) {
  for (size_t i = 0; i < some.size(); ++i) {
    if (some[i] >= 0) all[i] = some[i];
  }
}

// The rows of rank `from` to the one behind it.
RankTasks AddPassing(StepBuilder& step, int from, const RankTasks& after) {
  step.UseRanks(from, from + 1);
  const auto work = [&](int rank) {
    if (rank != from) return Work{};
    return Work{.link_bytes = {{step.spec().hidden_size * kHiddenBytes,
                                {.kind = SizeKind::kRows, .from = rank}}}};
  };
  return step.Collective(kPassRows, LaneBehind(from), {}, work, {after});
}

}  // namespace

RankTasks AddLayerPipeline(StepBuilder& step) {
  const Roles& roles = step.roles();
  const auto num_layers = static_cast<int>(step.layers().size());
  RankTasks last;  // by rank
  for (int stage = 0; stage < roles.num_stages(); ++stage) {
    RankTasks received;
    if (stage > 0) {
      received = AddPassing(step, stage - 1, last);
      step.UseRanks(stage - 1, stage - 1);  // what fails there is told, too
      Merge(step.OfUsedRanks(received), last);
      step.Pause();
    }
    step.UseRanks(stage, stage);
    const Roles seen = roles.SeenFrom(stage);
    StepOptions options = step.options();
    options.roles = seen;
    if (stage == 0) last = AddEmbedding(step);
    const Part layers = roles.of(stage).stage.LayersOf(num_layers);
    for (int layer = layers.first; layer < layers.first + layers.size; ++layer) {
      const model::LayerSpec& spec = step.layers()[layer];
      const bool prunes = options.prunes_last_layer && layer + 1 == num_layers;
      const LayerWork work(step.spec(), spec, layer, options, prunes);
      AddAttention(step, work, layer, /*cross=*/false, received);
      received.clear();
      Merge(spec.moe ? AddSingle(step, work, layer)
                     : step.Compute(kDense, {layer}, [&](int rank) { return work.Dense(rank); }),
            last);
    }
  }
  Merge(AddFinalNorm(step), last);
  step.UseAllRanks();
  return last;
}

}  // namespace convene::strategy
