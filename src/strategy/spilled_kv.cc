#include "strategy/spilled_kv.h"

#include "base/check.h"

namespace convene::strategy {

using schedule::LaneKind;
using enum schedule::TaskKind;

SpilledAttention::SpilledAttention(StepBuilder& step, const RankTasks& embedded)
    : step_(step),
      parts_(step.options().spilled_kv->parts),
      depth_(step.options().spilled_kv->depth) {
  CHECK(step.num_ranks() == 1 && !step.is_encoder() && !step.spec().has_encoder(),
        "keys and values on a disk of several ranks, or of an encoder");
  CHECK(parts_ >= 1 && depth_ >= 1, "{} parts, {} ahead", parts_, depth_);
  for (int i = 0; i < depth_; ++i) AddRead(embedded);
}

void SpilledAttention::AddRead(const RankTasks& after) {
  const auto number = static_cast<int>(reads_.size());
  if (number >= std::ssize(step_.layers()) * parts_) return;
  const int layer = number / parts_;
  const LayerWork work(step_.spec(), step_.layers()[layer], layer, step_.options());
  reads_.push_back(step_.OnLane(kReadKv, LaneKind::kLoad, {layer, number % parts_},
                                [&](int rank) { return work.ReadKv(rank); }, {after}));
}

void SpilledAttention::AddLayer(const LayerWork& work, int layer) {
  step_.Compute(kPreAttention, {layer}, [&](int rank) { return work.BeforeParts(rank); });
  for (int part = 0; part < parts_; ++part) {
    const auto number = static_cast<size_t>(layer) * parts_ + part;
    const RankTasks attended = step_.Compute(
        kAttend, {layer, part}, [&](int rank) { return work.AttendPart(rank); }, {reads_[number]});
    // The buffer is free for another part once it was written.
    AddRead(step_.OnLane(kWriteKv, LaneKind::kLoad, {layer, part},
                         [&](int rank) { return work.WriteKv(rank); }, {attended}));
  }
  step_.Compute(kPostAttention, {layer}, [&](int rank) { return work.BehindParts(rank); });
}

}  // namespace convene::strategy
