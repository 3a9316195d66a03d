// Weights whose routed experts are divided among ranks in one way in prefill and in another in
// decode: which of the two a rank has in memory, where, and which one is leased. What is exchanged
// for a change, and when, is the runtime's.
//
// The experts of each layer of the decoder lie in a room (ExpertRooms). A change goes layer by
// layer: the experts that the layer will have are put together in a free room from what is in its
// own and what other ranks send, and then its old room is free for the next layer. Where both
// divisions stay in memory there is a room for each layer in each, and only the first change moves
// anything, or none where both were read at loading. An encoder has the experts of prefill always.
#pragma once

#include <array>
#include <vector>

#include "model/model_spec.h"
#include "strategy/role.h"
#include "weights/expert_parts.h"
#include "weights/weight_store.h"

namespace convene::weights {

class PhasedWeights final : public ResidentWeights {
 public:
  // `weights` as LoadWeights gives them for `share`, whose experts they are in prefill; it keeps a
  // reference to them and to `whole`, the model of the checkpoint.
  PhasedWeights(ModelWeights& weights, const model::ModelSpec& whole, const Share& share);

  strategy::Part Experts(LayerId id) const override;
  Result<ExpertsLease> LeaseExperts(LayerId id, std::span<const int> experts) override;
  PhasedWeights* phased() override { return this; }

  const model::ModelSpec& whole() const { return whole_; }
  const Share& share() const { return share_; }
  // This rank's of a layer of the decoder that has experts.
  ExpertPart PartOf(int layer, strategy::Phase phase) const;
  // Where they lie; without data while they are not in memory.
  const std::vector<FfnWeights>& ExpertsIn(int layer, strategy::Phase phase) const {
    const MoeWeights& moe = *own_.layers[static_cast<size_t>(layer)].moe;
    return phase == strategy::Phase::kPrefill ? moe.experts : moe.decode_experts;
  }
  bool keeps_both() const { return share_.decode->beside; }
  // On all ranks, from the beginning: no change moves anything.
  bool begins_with_both() const { return own_.has_both_divisions; }
  // Whose experts are leased.
  strategy::Phase phase() const { return phase_; }
  // Whether all layers have the experts of `phase` in memory.
  bool Has(strategy::Phase phase) const;
  // From here on; all layers have them (CHECKed).
  void Use(strategy::Phase phase);

  // The change of one layer that has experts, of the decoder: both ends of it have their places,
  // and what the new ones have of padding. While it is under way nothing is leased.
  struct Change {
    const std::vector<FfnWeights>* from = nullptr;
    const std::vector<FfnWeights>* to = nullptr;
    ExpertPart from_part;
    ExpertPart to_part;
  };
  // Where the layer has no experts of `phase` yet. The new ones lie in a free room.
  Change Begin(int layer, strategy::Phase phase);
  // They are complete, and unless both are kept, the old ones are gone.
  void End(int layer, strategy::Phase phase);

 private:
  struct Layer {
    bool stays = true;  // the rank has the same experts in both phases, or the layer has none
    std::array<const std::byte*, 2> rooms = {};  // by phase; null: they are not in memory
  };
  std::vector<FfnWeights>& ExpertsOf(int layer, strategy::Phase phase);

  ModelWeights& own_;
  const model::ModelSpec& whole_;
  Share share_;
  strategy::Phase phase_ = strategy::Phase::kPrefill;
  std::vector<Layer> layers_;
  std::vector<const std::byte*> free_;  // rooms
};

}  // namespace convene::weights
