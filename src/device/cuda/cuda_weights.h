// The weights of a model in the memory of a GPU, as kernels/cuda/ reads them: copied once from
// where a WeightStore has them packed for the CPU, bf16 matrices to rows, vectors as they are.
// Where the store lends feed-forward matrices in the GPU's memory (WeightStore::lends_on_device),
// there is room here for those of one layer, which all take in turn.
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
  // What Upload takes, where `loans` are not among it but for the room of one layer.
  static uint64_t SizeBytes(const model::ModelSpec& spec, weights::DeviceLoans loans);
  // Error: layers differ, so that they cannot take turns in one room.
  static Status CanTakeTurns(const model::ModelSpec& spec, weights::DeviceLoans loans);

  // Errors: CanTakeTurns, as Ledger::Allocate, what a lease says, and of CUDA.
  static Result<CudaWeights> Upload(weights::WeightStore& store, memory::Ledger& ledger);

  // Before these experts of the layer are read by what is enqueued next: where layers take turns,
  // unpacks those that the room has not, from where the store lends them, and returns when that is
  // done, so that others may take their pages. Error: of CUDA, or the lease's.
  Status BringExperts(weights::LayerId id, std::span<const int> experts,
                      weights::WeightStore& store, kernels::cuda::StreamHandle stream);
  // The same of its dense block.
  Status BringDense(weights::LayerId id, weights::WeightStore& store,
                    kernels::cuda::StreamHandle stream);

  std::vector<CudaLayer> layers;
  const float* final_norm = nullptr;
  kernels::cuda::WeightMatrices embedding;
  kernels::cuda::WeightMatrices head;

 private:
  memory::Reservation memory_;
  // Whose matrices are in the room, and of a layer with experts which of them.
  int brought_layer_ = -1;
  std::vector<bool> brought_experts_;
};

}  // namespace convene::device
