#include "weights/page_index.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "memory/page_reader.h"
#include "weights/named_weights.h"
#include "weights/share.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

// The layer and number of each routed expert, by its first matrix.
std::map<const kernels::PackedMatrix*, std::pair<size_t, size_t>> ExpertsOf(
    const ModelWeights& weights) {
  std::map<const kernels::PackedMatrix*, std::pair<size_t, size_t>> experts;
  size_t layer_idx = 0;
  const auto add = [&](const std::vector<LayerWeights>& layers) {
    for (const LayerWeights& layer : layers) {
      for (size_t expert = 0; layer.moe && expert < layer.moe->experts.size(); ++expert) {
        experts[&layer.moe->experts[expert].up] = {layer_idx, expert};
      }
      ++layer_idx;
    }
  };
  if (weights.encoder) add(weights.encoder->layers);
  add(weights.layers);
  return experts;
}

// Of each layer; returns how many experts there were in all.
int KeepFirstExperts(ModelWeights& weights) {
  int count = 0;
  const auto keep = [&](std::vector<LayerWeights>& layers) {
    for (LayerWeights& layer : layers) {
      if (!layer.moe || layer.moe->experts.empty()) continue;
      count += static_cast<int>(layer.moe->experts.size());
      layer.moe->experts.resize(1);
    }
  };
  if (weights.encoder) keep(weights.encoder->layers);
  keep(weights.layers);
  return count;
}

struct PlaceOfPart {
  uint64_t offset = 0;
  uint64_t digest = 0;
};

template <typename PlaceOf>
PageIndex IndexPlaces(ModelWeights& weights, const PlaceOf& place_of) {
  const auto experts = ExpertsOf(weights);
  const size_t num_layers =
      weights.layers.size() + (weights.encoder ? weights.encoder->layers.size() : 0);
  PageIndex index;
  index.experts.resize(num_layers);
  StoredPage page;
  for (const NamedMatrix& named : Matrices(weights)) {
    const PlaceOfPart place = place_of(named);
    if (page.parts.empty()) page.offset = place.offset;
    CHECK(place.offset == page.offset + page.size_bytes, "{} at {}, not behind {}", named.name,
          place.offset, page.offset + page.size_bytes);
    page.parts.push_back({.name = named.name,
                          .matrix = const_cast<kernels::PackedMatrix*>(named.matrix),
                          .begin = page.size_bytes,
                          .digest = place.digest});
    page.size_bytes += named.matrix->size_bytes();
    if (!named.ends_page) continue;
    const auto expert = experts.find(page.parts.front().matrix);
    if (expert == experts.end()) {
      index.resident.push_back(std::move(page));
    } else {
      index.experts[expert->second.first].push_back(std::move(page));
    }
    page = {};
  }
  return index;
}

}  // namespace

PagedSizes PagedSizesOf(const model::ModelSpec& spec, const WeightFormats& formats,
                        const strategy::ExpertOwner& owner) {
  ModelWeights weights;
  const Share share = ShareOf(owner.roles, owner.rank);
  const Result<model::ModelSpec> local = LocalSpec(spec, share, formats);
  CHECK(local.ok(), "{}", local.error().message);
  LayOut(*local, formats, nullptr, &weights, share);
  // A layer's experts are alike, so that the first stands for them: naming tens of thousands takes
  // longer than all the rest, and the planner asks this of hundreds of layouts.
  PagedSizes sizes{.num_pages = KeepFirstExperts(weights),
                   .most_experts = strategy::MostExperts(spec, owner),
                   .fewest_buffers = strategy::FewestExpertsInMemory(spec, owner)};
  const auto experts = ExpertsOf(weights);
  uint64_t page_bytes = 0;
  const kernels::PackedMatrix* first = nullptr;
  for (const NamedMatrix& named : Matrices(weights)) {
    if (page_bytes == 0) first = named.matrix;
    page_bytes += named.matrix->size_bytes();
    if (!named.ends_page) continue;
    if (experts.contains(first)) {
      sizes.page_bytes = std::max(sizes.page_bytes, memory::DirectBytes(page_bytes));
    } else {
      sizes.resident_bytes += memory::DirectBytes(page_bytes);
    }
    page_bytes = 0;
  }
  return sizes;
}

PageIndex IndexPages(const PackedDirectory& directory, ModelWeights& weights) {
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < directory.tensors.size(); ++i) places[directory.tensors[i].name] = i;
  return IndexPlaces(weights, [&](const NamedMatrix& named) -> PlaceOfPart {
    auto place = places.find(named.name);
    // Of a rank without a head, where the two are one.
    if (place == places.end() && named.name == "embedding") place = places.find("head");
    CHECK(place != places.end(), "no {} in {}", named.name, directory.file.path());
    return {directory.tensors[place->second].offset, directory.checksums[place->second].digest};
  });
}

PageIndex IndexPages(ModelWeights& weights) {
  return IndexPlaces(weights, [&](const NamedMatrix& named) -> PlaceOfPart {
    return {.offset = static_cast<uint64_t>(named.matrix->data - weights.bytes.data())};
  });
}

}  // namespace convene::weights
