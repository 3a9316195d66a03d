#include "strategy/tensor_parallel.h"

namespace convene::strategy {
namespace {

using schedule::Block;
using schedule::LaneKind;
using enum schedule::TaskKind;

// What stands around a block whose matrices are divided among the ranks of a group.
class DividedBlock {
 public:
  DividedBlock(StepBuilder& step, const LayerWork& work, int layer, Block block)
      : step_(step), work_(work), at_{.layer = layer, .block = block} {}

  // Each rank's own rows, normed and brought to all ranks of its group.
  RankTasks Begin(const RankTasks& after) {
    const double row_bytes = step_.spec().hidden_size * 6.0;
    const bool is_first = at_.block == Block::kAttention;
    const RankTasks normalize = step_.Compute(kNormalize, at_,
                                              [&](int rank) {
                                                return is_first ? work_.RowsBefore(rank, row_bytes)
                                                                : work_.Rows(rank, row_bytes);
                                              },
                                              {after});
    return Collective(
        kGatherNormed,
        [&](int rank) {
          return work_.GatherNormed(rank, step_.options().bytes.activations, !is_first);
        },
        normalize);
  }

  // Partial sums of all rows to their owners, who add them up.
  void End(const RankTasks& partial) {
    const RankTasks scatter = Collective(
        kScatterSums, [&](int rank) { return work_.ScatterSums(rank, step_.options().bytes.sums); },
        partial);
    const double row_bytes = step_.spec().hidden_size * 4.0 * (step_.roles().attention_parts() + 1);
    step_.Compute(kAddPartials, at_, [&](int rank) { return work_.Rows(rank, row_bytes); },
                  {scatter});
  }

  RankTasks Collective(schedule::TaskKind kind, const StepBuilder::WorkOf& work,
                       const RankTasks& after) {
    return step_.Collective(kind, LaneKind::kSend, at_, work, {after},
                            [&](int rank) { return step_.roles().of(rank).attention->group; });
  }

 private:
  StepBuilder& step_;
  const LayerWork& work_;
  StepBuilder::At at_;
};

}  // namespace

void AddAttention(StepBuilder& step, const LayerWork& work, int layer, bool cross,
                  const RankTasks& after) {
  const StepBuilder::At at{.layer = layer, .block = cross ? Block::kCross : Block::kAttention};
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
  DividedBlock block(step, work, layer, at.block);
  RankTasks gathered = block.Begin(after);
  if (is_projected) {
    const RankTasks project =
        step.Compute(kProject, at, [&](int rank) { return work.Project(rank); }, {gathered});
    gathered = block.Collective(
        kNormSums, [&](int rank) { return work.NormSums(rank); }, project);
  }
  block.End(step.Compute(kAttention, at, attention, {gathered}));
}

void AddDense(StepBuilder& step, const LayerWork& work, int layer) {
  const auto dense = [&](int rank) { return work.Dense(rank); };
  if (!step.roles().divides_dense()) {
    step.Compute(kDense, {layer}, dense);
    return;
  }
  DividedBlock block(step, work, layer, Block::kDense);
  const RankTasks gathered = block.Begin({});
  block.End(step.Compute(kDense, {layer}, dense, {gathered}));
}

}  // namespace convene::strategy
