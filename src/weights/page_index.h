// Which pages of a packed directory are routed experts, which a paged store reads when they are
// needed, and what of the model stays in memory beside them. Reads nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "strategy/paging.h"
#include "weights/model_weights.h"
#include "weights/packed_directory.h"

namespace convene::weights {

// What a paged store of a rank needs memory for.
struct PagedSizes {
  uint64_t resident_bytes = 0;  // of all pages but those of routed experts
  uint64_t page_bytes = 0;      // of a buffer for an expert: of the largest one
  int num_pages = 0;            // experts, of all layers
  int most_experts = 0;         // of a layer
  int fewest_buffers = 0;       // strategy::FewestExpertsInMemory

  // Weights of the store with so many buffers.
  uint64_t bytes_with(int num_buffers) const {
    return resident_bytes + page_bytes * static_cast<uint64_t>(num_buffers);
  }
};
// `spec`: the whole model, which the owner's share fits (LocalSpec).
PagedSizes PagedSizesOf(const model::ModelSpec& spec, const WeightFormats& formats,
                        const strategy::ExpertOwner& owner = {});

// A matrix of a page: where it begins in it, and what its bytes are checked against.
struct PagePart {
  std::string name;
  kernels::PackedMatrix* matrix = nullptr;
  uint64_t begin = 0;
  uint64_t digest = 0;
};

struct StoredPage {
  uint64_t offset = 0;      // in the file, a multiple of 4,096; or in the weights in memory
  uint64_t size_bytes = 0;  // of its matrices
  std::vector<PagePart> parts = {};
};

// All pages of `weights`, a rank's share of the directory's model, whose matrices the parts point
// to.
struct PageIndex {
  std::vector<StoredPage> resident;
  // By layer, those of the encoder first, then by expert of the rank; none where a layer has none.
  std::vector<std::vector<StoredPage>> experts;
};
PageIndex IndexPages(const PackedDirectory& directory, ModelWeights& weights);
// The same of weights that lie in memory (ModelWeights::bytes): offsets are there, and nothing is
// to be checked. Precondition: the matrices of a page lie one behind the other.
PageIndex IndexPages(ModelWeights& weights);

}  // namespace convene::weights
