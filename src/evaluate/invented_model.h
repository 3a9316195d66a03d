// A model of a given shape with random weights, in memory only: what is timed where no checkpoint
// is needed. Each rank has its share.
#pragma once

#include <memory>

#include "base/result.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "strategy/layout.h"
#include "weights/model_weights.h"
#include "weights/weight_store.h"

namespace convene::evaluate {

struct ModelShape {
  int hidden = 2048;
  int heads = 16;
  int kv_heads = 0;  // 0: as many as heads
  int head_dim = 0;  // 0: hidden / heads
  // Above 0: latent attention, whose keys have head_dim elements without position and 64 with.
  int latent = 0;
  model::QkNorm qk_norm = model::QkNorm::kNone;
  int layers = 2;
  int experts = 64;
  int top_k = 8;
  int intermediate = 1024;
  int shared_intermediate = 0;
  bool gated = true;  // SiLU with a gate; otherwise two matrices and ReLU (Switch)
  int vocab = 1024;
  int dense_intermediate = 0;  // above 0: the first layer has no experts
};

model::ModelSpec InventSpec(const ModelShape& shape);

class InventedModel {
 public:
  // With the head on rank 0 only. Weights are small numbers, and each router sends tokens about
  // evenly. Its memory is reserved in `ledger` while it lives. Errors: no memory; a layout that
  // does not fit.
  static Result<std::unique_ptr<InventedModel>> Create(const model::ModelSpec& whole,
                                                       const weights::WeightFormats& formats,
                                                       const strategy::Layout& layout, int rank,
                                                       memory::Ledger& ledger);

  const model::ModelSpec& whole_spec() const { return whole_; }
  weights::WeightStore& weights() { return store_; }
  const weights::ModelWeights& model_weights() const { return weights_; }

 private:
  InventedModel() = default;

  model::ModelSpec whole_;
  weights::ModelWeights weights_;
  weights::ResidentWeights store_{weights_};
};

}  // namespace convene::evaluate
