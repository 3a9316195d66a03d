#include "weights/phased_weights.h"

#include <algorithm>

#include "base/check.h"

namespace convene::weights {
namespace {

using strategy::Phase;

size_t At(Phase phase) { return static_cast<size_t>(phase); }
Phase Other(Phase phase) { return phase == Phase::kPrefill ? Phase::kDecode : Phase::kPrefill; }

}  // namespace

PhasedWeights::PhasedWeights(ModelWeights& weights, const model::ModelSpec& whole,
                             const Share& share)
    : ResidentWeights(weights), own_(weights), whole_(whole), share_(share) {
  CHECK(share.decode, "the experts of this share stay as they are");
  for (int layer = 0; layer < whole.num_layers(); ++layer) {
    Layer& state = layers_.emplace_back();
    if (!whole.layers[layer].moe) continue;
    state.stays = PartOf(layer, Phase::kPrefill) == PartOf(layer, Phase::kDecode);
    MoeWeights& moe = *own_.layers[layer].moe;
    if (!state.stays) {
      state.rooms[At(Phase::kPrefill)] = moe.experts[0].up.data;
      state.rooms[At(Phase::kDecode)] = moe.decode_experts[0].up.data;
      continue;
    }
    for (size_t i = 0; i < moe.experts.size(); ++i) {
      moe.decode_experts[i].up = moe.experts[i].up;
      moe.decode_experts[i].down = moe.experts[i].down;
    }
  }
  for (int i = 0; i < weights.rooms.num_free; ++i) {
    free_.push_back(weights.rooms.free + weights.rooms.room_bytes * static_cast<uint64_t>(i));
  }
}

strategy::Part PhasedWeights::Experts(LayerId id) const {
  if (id.encoder || phase_ == Phase::kPrefill) return ResidentWeights::Experts(id);
  const MoeWeights& moe = *LayerOf(id).moe;
  return {moe.first_decode_expert, static_cast<int>(moe.decode_experts.size())};
}

Result<ExpertsLease> PhasedWeights::LeaseExperts(LayerId id, std::span<const int> experts) {
  if (id.encoder || phase_ == Phase::kPrefill) return ResidentWeights::LeaseExperts(id, experts);
  return ExpertsLease(LayerOf(id).moe->decode_experts);
}

bool PhasedWeights::Has(Phase phase) const {
  return std::ranges::all_of(layers_, [&](const Layer& layer) {
    return layer.stays || layer.rooms[At(phase)] != nullptr;
  });
}

void PhasedWeights::Use(Phase phase) {
  CHECK(Has(phase), "a layer has no experts of this phase");
  phase_ = phase;
}

PhasedWeights::Change PhasedWeights::Begin(int layer, Phase phase) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const Change change = {.from = &ExpertsOf(layer, Other(phase)),
                         .to = &ExpertsOf(layer, phase),
                         .from_part = PartOf(layer, Other(phase)),
                         .to_part = PartOf(layer, phase)};
  if (state.stays) return change;
  CHECK(state.rooms[At(phase)] == nullptr && !free_.empty(), "layer {} has them, or no room",
        layer);
  const std::byte* at = free_.back();
  free_.pop_back();
  state.rooms[At(phase)] = at;
  const bool gated = whole_.layers[layer].moe->activation.gated();
  for (FfnWeights& expert : ExpertsOf(layer, phase)) {
    at += PlaceFfnAt(at, &expert);
    FillPadding(expert, gated, change.to_part.slice.size);
  }
  return change;
}

void PhasedWeights::End(int layer, Phase phase) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  if (state.stays || keeps_both()) return;
  const std::byte*& old = state.rooms[At(Other(phase))];
  free_.push_back(std::exchange(old, nullptr));
  for (FfnWeights& expert : ExpertsOf(layer, Other(phase))) PlaceFfnAt(nullptr, &expert);
}

std::vector<FfnWeights>& PhasedWeights::ExpertsOf(int layer, Phase phase) {
  MoeWeights& moe = *own_.layers[static_cast<size_t>(layer)].moe;
  return phase == Phase::kPrefill ? moe.experts : moe.decode_experts;
}

ExpertPart PhasedWeights::PartOf(int layer, Phase phase) const {
  return ExpertPartOf(*whole_.layers[static_cast<size_t>(layer)].moe,
                      phase == Phase::kPrefill ? share_ : InDecode(share_), formats());
}

}  // namespace convene::weights
