// A model of a given shape with random weights, in memory only: what a scenario times. Each rank
// has its share.
#pragma once

#include <memory>

#include "base/result.h"
#include "hardware/huge_buffer.h"
#include "kernels/kernel_set.h"
#include "model/model_spec.h"
#include "runtime/transformer.h"
#include "strategy/layout.h"
#include "weights/weight_store.h"

namespace convene::bench {

struct ModelShape {
  int hidden = 2048;
  int heads = 16;
  int layers = 2;
  int experts = 64;
  int top_k = 8;
  int intermediate = 1024;
  int shared_intermediate = 0;
  bool gated = true;  // SiLU with a gate; otherwise two matrices and ReLU (Switch)
};

class InventedModel {
 public:
  // bf16, with the head on rank 0 only.
  static Result<std::unique_ptr<InventedModel>> Create(const ModelShape& shape,
                                                       const strategy::Layout& layout, int rank);

  const model::ModelSpec& whole_spec() const { return whole_; }
  weights::WeightStore& weights() { return store_; }

 private:
  InventedModel() = default;
  void Fill(uint64_t seed);

  model::ModelSpec whole_;
  hardware::HugeBuffer memory_;
  weights::ModelWeights weights_;
  weights::ResidentWeights store_{weights_};
};

}  // namespace convene::bench
