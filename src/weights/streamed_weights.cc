#include "weights/streamed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

constexpr size_t kAlignment = 64;

size_t AlignedBytes(const kernels::PackedMatrix& matrix) {
  return (matrix.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

Status Supports(const ModelWeights& weights) {
  const char* what = weights.encoder ? "an encoder" : nullptr;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.moe && !layer.moe->decode_experts.empty()) what = "other experts in decode";
  }
  if (what == nullptr) return {};
  return Error{
      fmt::format("weights of a model with {} cannot be streamed layer by layer: take a decoder "
                  "whose experts are divided alike in both phases",
                  what)};
}

// In the order in which they lie in a room.
template <typename Layer, typename F>
void ForEachStreamed(Layer& layer, const F& f) {
  const auto each = [&](auto& ffn) {
    f(ffn.up);
    f(ffn.down);
  };
  if (layer.dense) each(*layer.dense);
  if (!layer.moe) return;
  for (auto& expert : layer.moe->experts) each(expert);
}

}  // namespace

Result<std::unique_ptr<StreamedWeights>> StreamedWeights::Create(const ModelWeights& weights,
                                                                 const StreamedOptions& options,
                                                                 memory::Ledger& of_device,
                                                                 memory::Ledger& of_host) {
  CHECK(options.pages >= 1 && options.pinned_pages >= 0, "{} pages, {} of them pinned",
        options.pages, options.pinned_pages);
  if (const Status fits = Supports(weights); !fits) return fits.error();
  std::unique_ptr<StreamedWeights> streamed(new StreamedWeights(weights, options));
  for (int layer = 0; layer < streamed->num_layers(); ++layer) streamed->PlaceLayer(layer);
  const size_t room_bytes = *std::ranges::max_element(streamed->layer_bytes_);
  for (memory::Reservation& room : streamed->rooms_) {
    auto memory = of_device.Allocate(memory::Use::kWeights, room_bytes);
    if (!memory) return memory.error();
    room = *std::move(memory);
  }
  for (int layer = 0; layer < streamed->num_layers(); ++layer) {
    for (int page = 0; page < options.pages; ++page) {
      streamed->page_bytes_ = std::max(streamed->page_bytes_, streamed->PageBegin(layer, page + 1) -
                                                                  streamed->PageBegin(layer, page));
    }
  }
  auto pinned = of_host.Allocate(memory::Use::kStaging,
                                 streamed->page_bytes_ * static_cast<size_t>(options.pinned_pages));
  if (!pinned) return pinned.error();
  streamed->pinned_ = *std::move(pinned);
  for (size_t slot = 0; slot < 2; ++slot) {
    streamed->placed_[slot] = weights.layers;
    for (int layer = 0; layer < streamed->num_layers(); ++layer) {
      const Place* place = streamed->places_[layer].data();
      ForEachStreamed(streamed->placed_[slot][layer], [&](kernels::PackedMatrix& matrix) {
        matrix.data = streamed->rooms_[slot].data() + (place++)->offset;
      });
    }
  }
  return streamed;
}

uint64_t StreamedWeights::RoomBytes(const model::ModelSpec& spec, const WeightFormats& formats) {
  ModelWeights weights;
  LayOut(spec, formats, nullptr, &weights);
  uint64_t most = 0;
  for (const LayerWeights& layer : weights.layers) {
    uint64_t size_bytes = 0;
    ForEachStreamed(
        layer, [&](const kernels::PackedMatrix& matrix) { size_bytes += AlignedBytes(matrix); });
    most = std::max(most, size_bytes);
  }
  return most;
}

void StreamedWeights::PlaceLayer(int layer) {
  size_t offset = 0;
  std::vector<Place>& places = places_.emplace_back();
  ForEachStreamed(weights_.layers[layer], [&](const kernels::PackedMatrix& matrix) {
    const size_t size_bytes = matrix.size_bytes();
    places.push_back({.from = matrix.data, .offset = offset, .size_bytes = size_bytes});
    offset += AlignedBytes(matrix);
  });
  layer_bytes_.push_back(offset);
}

void StreamedWeights::BeginStep() {
  if (std::exchange(has_begun_, true)) first_slot_ = (first_slot_ + num_layers()) % 2;
}

std::vector<StreamedWeights::Copy> StreamedWeights::First() const {
  std::vector<Copy> copies;
  for (const Place& place : places_.front()) {
    copies.push_back({.from = place.from,
                      .to = rooms_[SlotOf(0)].data() + place.offset,
                      .size_bytes = place.size_bytes});
  }
  return copies;
}

size_t StreamedWeights::PageBegin(int layer, int page) const {
  const size_t lines = layer_bytes_[layer] / kAlignment;
  return lines * static_cast<size_t>(page) / static_cast<size_t>(options_.pages) * kAlignment;
}

std::byte* StreamedWeights::PinnedOf(int layer, int page) const {
  const int number = (layer * options_.pages + page) % options_.pinned_pages;
  return pinned_.data() + static_cast<size_t>(number) * page_bytes_;
}

std::span<const StreamedWeights::Copy> StreamedWeights::Cut(int layer, int page, bool to_pinned,
                                                            std::vector<Copy>& copies) const {
  copies.clear();
  const int source = layer % num_layers();
  const size_t begin = PageBegin(source, page);
  const size_t end = PageBegin(source, page + 1);
  std::byte* const to = to_pinned ? PinnedOf(layer, page) : rooms_[SlotOf(layer)].data() + begin;
  for (const Place& place : places_[source]) {
    const size_t first = std::max(begin, place.offset);
    const size_t last = std::min(end, place.offset + place.size_bytes);
    if (first >= last) continue;
    copies.push_back({.from = place.from + (first - place.offset),
                      .to = to + (first - begin),
                      .size_bytes = last - first});
  }
  return copies;
}

std::span<const StreamedWeights::Copy> StreamedWeights::Loading(int layer, int page) {
  if (options_.pinned_pages == 0) return Cut(layer, page, /*to_pinned=*/false, loading_);
  const int source = layer % num_layers();
  const size_t begin = PageBegin(source, page);
  loading_.assign(1, {.from = PinnedOf(layer, page),
                      .to = rooms_[SlotOf(layer)].data() + begin,
                      .size_bytes = PageBegin(source, page + 1) - begin});
  return loading_;
}

}  // namespace convene::weights
