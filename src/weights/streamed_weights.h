// Weights whose routed experts and dense feed-forward blocks lie in a slow tier and go through the
// memory of a device, layer by layer, which has room for those of two layers; everything else stays
// where it is. What is copied when is the step's schedule (strategy/offload_pipeline.h), and by
// whom its executor's matter: this knows where bytes lie and where they go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "memory/ledger.h"
#include "weights/weight_store.h"

namespace convene::weights {

struct StreamedOptions {
  int pages = 1;         // of what is streamed of a layer, of equal size
  int pinned_pages = 0;  // buffers on the way; 0: the slow tier is pinned memory itself
};

class StreamedWeights : public WeightStore {
 public:
  struct Copy {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    size_t size_bytes = 0;
  };

  // `weights` is the slow tier, in the host's memory. Keeps a reference to it; the rooms are
  // reserved in the ledger of the device, pinned pages in that of the host. Errors: an encoder, or
  // other experts in decode; as Ledger::Allocate.
  static Result<std::unique_ptr<StreamedWeights>> Create(const ModelWeights& weights,
                                                         const StreamedOptions& options,
                                                         memory::Ledger& of_device,
                                                         memory::Ledger& of_host);

  // Of one of the two rooms.
  static uint64_t RoomBytes(const model::ModelSpec& spec, const WeightFormats& formats);

  // Layer 0 of the next step is in the room that layer `num_layers` of this one went to; of the
  // first step in that of First, whose copies must be done before it.
  void BeginStep();
  std::vector<Copy> First() const;

  // Both hops of a page of layer `layer`, 0 <= layer <= number of layers: that many is the first
  // layer of the next step. Without pinned pages nothing is staged, and loading is all. Valid until
  // the next call of the same function; calls of one function come from one thread at a time.
  std::span<const Copy> Staging(int layer, int page) { return Cut(layer, page, true, staging_); }
  std::span<const Copy> Loading(int layer, int page);

  DeviceLoans lends_on_device() const override { return DeviceLoans::kFeedForward; }
  Result<LayerLease> LeaseLayer(LayerId id, LayerPart) override {
    return LayerLease(PlacedAt(id.layer));
  }
  Result<ExpertsLease> LeaseExperts(LayerId id, std::span<const int>) override {
    return ExpertsLease(PlacedAt(id.layer).moe->experts);
  }
  Result<MatrixLease> LeaseEmbedding(bool) override { return MatrixLease(weights_.embedding); }
  Result<MatrixLease> LeaseHead() override { return MatrixLease(weights_.head); }

 private:
  // A matrix that is streamed, in the slow tier and in a room.
  struct Place {
    const std::byte* from = nullptr;
    size_t offset = 0;
    size_t size_bytes = 0;
  };

  StreamedWeights(const ModelWeights& weights, const StreamedOptions& options)
      : WeightStore(weights), options_(options) {}
  void PlaceLayer(int layer);
  size_t SlotOf(int layer) const { return static_cast<size_t>((first_slot_ + layer) % 2); }
  const LayerWeights& PlacedAt(int layer) const {
    return placed_[SlotOf(layer)][static_cast<size_t>(layer)];
  }
  int num_layers() const { return static_cast<int>(weights_.layers.size()); }
  size_t PageBegin(int layer, int page) const;
  std::byte* PinnedOf(int layer, int page) const;
  // The page's part of each matrix, to its room or to its pinned buffer.
  std::span<const Copy> Cut(int layer, int page, bool to_pinned, std::vector<Copy>& copies) const;

  StreamedOptions options_;
  std::vector<std::vector<Place>> places_;  // by layer
  std::vector<size_t> layer_bytes_;         // likewise
  // By slot and layer: as it is where what is streamed lies in that room.
  std::array<std::vector<LayerWeights>, 2> placed_;
  std::array<memory::Reservation, 2> rooms_;
  memory::Reservation pinned_;
  size_t page_bytes_ = 0;  // of the largest
  int first_slot_ = 0;     // of layer 0
  bool has_begun_ = false;
  std::vector<Copy> staging_;
  std::vector<Copy> loading_;
};

}  // namespace convene::weights
