// The weights of a model in the memory of a GPU, as kernels/cuda/ reads them: copied once from
// where a WeightStore has them packed for the CPU, bf16 matrices to rows, vectors as they are.
// Where the store brings feed-forward matrices to the GPU layer by layer
// (WeightStore::lends_on_device), there is room here for those of one layer, which all take in
// turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/stream.h"
#include "memory/ledger.h"
#include "weights/weight_store.h"

namespace convene::device {

// Feed-forward blocks of one shape: one, or the experts of a layer.
struct CudaFfn {
  kernels::cuda::WeightMatrices up;  // gated: kernels::cuda::GatedRows
  kernels::cuda::WeightMatrices down;
  const float* up_bias = nullptr;    // (count, up.rows) or null
  const float* down_bias = nullptr;  // (count, down.rows) or null
  int intermediate = 0;
};

struct CudaMoe {
  const float* router =
      nullptr;  // (num_outputs, hidden): the experts', then a shared expert's gate
  const float* router_bias = nullptr;
  const float* correction = nullptr;
  int num_outputs = 0;
  CudaFfn experts;
  std::optional<CudaFfn> shared;
};

struct CudaLayer {
  const float* attention_norm = nullptr;
  kernels::cuda::WeightMatrices qkv;
  const float* qkv_bias = nullptr;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  const float* sinks = nullptr;
  kernels::cuda::WeightMatrices output;
  const float* output_bias = nullptr;
  const float* ffn_norm = nullptr;
  std::optional<CudaMoe> moe;
  std::optional<CudaFfn> dense;
};

class CudaWeights {
 public:
  // What Upload takes. `streams`: feed-forward matrices of one layer alone.
  static uint64_t SizeBytes(const model::ModelSpec& spec, bool streams = false);

  // Errors: as Ledger::Allocate, what a lease says, and of CUDA.
  static Result<CudaWeights> Upload(weights::WeightStore& store, memory::Ledger& ledger);

  // Before feed-forward matrices of the layer are read by what is enqueued next: where layers take
  // turns, unpacks them from where the store lends them. Error: of CUDA, or the lease's.
  Status Bring(weights::LayerId id, weights::WeightStore& store,
               kernels::cuda::StreamHandle stream);

  std::vector<CudaLayer> layers;
  const float* final_norm = nullptr;
  kernels::cuda::WeightMatrices embedding;
  kernels::cuda::WeightMatrices head;

 private:
  memory::Reservation memory_;
  int brought_layer_ = -1;
};

}  // namespace convene::device
