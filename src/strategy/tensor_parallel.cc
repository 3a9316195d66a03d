#include "strategy/tensor_parallel.h"

namespace convene::strategy {

void AddAttention(StepBuilder& step, const LayerWork& work, int layer, bool cross,
                  const RankTasks& after) {
  using enum schedule::TaskKind;
  using schedule::LaneKind;
  const StepBuilder::At at{.layer = layer, .cross = cross};
  const int num_parts = step.roles().attention_parts();
  const bool is_projected =
      !cross && num_parts > 1 &&
      step.layers()[layer].attention.qk_norm == model::QkNorm::kWholeProjection;
  const auto attention = [&](int rank) {
    return cross ? work.CrossAttention(rank) : work.Attention(rank, is_projected);
  };
  if (num_parts == 1) {
    step.Compute(kAttention, at, attention, {after});
    return;
  }
  const auto group_of = [&](int rank) { return step.roles().of(rank).attention->group; };
  const double hidden = step.spec().hidden_size;
  const ElementBytes& bytes = step.options().bytes;
  const RankTasks normalize =
      step.Compute(kNormalize, at,
                   [&](int rank) {
                     return cross ? work.Rows(rank, hidden * 6) : work.RowsBefore(rank, hidden * 6);
                   },
                   {after});
  RankTasks gathered = step.Collective(
      kGatherNormed, LaneKind::kSend, at,
      [&](int rank) { return work.GatherNormed(rank, bytes.activations, cross); }, {normalize},
      group_of);
  if (is_projected) {
    const RankTasks project =
        step.Compute(kProject, at, [&](int rank) { return work.Project(rank); }, {gathered});
    gathered = step.Collective(
        kNormSums, LaneKind::kSend, at, [&](int rank) { return work.NormSums(rank); }, {project},
        group_of);
  }
  const RankTasks partial = step.Compute(kAttention, at, attention, {gathered});
  const RankTasks scatter = step.Collective(
      kScatterSums, LaneKind::kSend, at,
      [&](int rank) { return work.ScatterSums(rank, bytes.sums); }, {partial}, group_of);
  step.Compute(kAddPartials, at,
               [&](int rank) { return work.Rows(rank, hidden * 4 * (num_parts + 1)); }, {scatter});
}

}  // namespace convene::strategy
