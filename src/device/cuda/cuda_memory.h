// What one micro-batch, and a stream for the task in work, have in the memory of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/frame.h"
#include "device/step_shape.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/stream.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::device {

// Rows of T in the device's memory, `stride` elements apart.
template <typename T>
struct CudaRows {
  T* data = nullptr;
  int64_t stride = 0;

  T* row(int64_t index) const { return data + index * stride; }
};

// Small things that operators read and the host writes anew for each step. They lie in pinned host
// memory and at the same place of a part of the device's, to which they are copied on the stream.
class CudaUploads {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

  explicit CudaUploads(memory::Ledger& ledger) : ledger_(ledger) {}
  CudaUploads(const CudaUploads&) = delete;
  CudaUploads& operator=(const CudaUploads&) = delete;
  ~CudaUploads();

  // Nothing of before is needed any more, nor under way.
  void Clear();
  // Where `values` will lie in the device's memory once Flush was called. Errors: as
  // Ledger::Allocate, and of CUDA.
  template <typename T>
  Result<const T*> Add(std::span<const T> values) {
    Result<const std::byte*> at = AddBytes(std::as_bytes(values));
    if (!at) return at.error();
    return reinterpret_cast<const T*>(*at);
  }
  // Copies what was added since the last one, before whatever is enqueued from now on.
  Status Flush(kernels::cuda::StreamHandle stream);

 private:
  struct Chunk {
    memory::Reservation device;
    std::byte* host = nullptr;
    uint64_t size_bytes = 0;
    uint64_t used = 0;
    uint64_t flushed = 0;
  };
  Result<const std::byte*> AddBytes(std::span<const std::byte> bytes);

  memory::Ledger& ledger_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;   // in use
  uint64_t used_ = 0;  // of it
};

// The routing of a frame's own rows and how they are grouped by expert, in the device's memory.
struct CudaRouting {
  int32_t* experts = nullptr;     // (rows, top_k)
  float* weights = nullptr;       // (rows, top_k)
  int32_t* first_slot = nullptr;  // (experts + 1)
  int32_t* slot_row = nullptr;    // (slots)
  int32_t* pair_slot = nullptr;   // (rows, top_k)
  int32_t* scratch = nullptr;
};

// As device/cpu/activations.h.
struct CudaActivations {
  CudaRows<float> hidden;
  CudaRows<kernels::cuda::Bf16> normed;
  CudaRows<float> normed_float;
  CudaRows<float> qkv;
  CudaRows<kernels::cuda::Bf16> queries;
  CudaRows<kernels::cuda::Bf16> attended;
  CudaRows<float> router_logits;
  CudaRows<float> slot_out;
  CudaRows<float> shared_out;
  CudaRouting routing;
  int32_t* all_finite = nullptr;
  int num_slots = 0;

  static uint64_t SizeBytes(const model::ModelSpec& spec, const FrameShape& shape);
  static CudaActivations At(const model::ModelSpec& spec, const FrameShape& shape, std::byte* base);
};

// As device/cpu/workspace.h.
struct CudaWorkspace {
  CudaRows<kernels::cuda::Bf16> expert_in;     // (slots, hidden)
  CudaRows<kernels::cuda::Bf16> intermediate;  // (slots, intermediate)
  CudaRows<kernels::cuda::Bf16> wanted;        // (Stream::kHeadRows, hidden)
  CudaRows<float> logits;                      // (Stream::kHeadRows, vocab)
  unsigned long long* largest = nullptr;       // (Stream::kHeadRows) keys of FindLargest
  float* partials = nullptr;                   // of attention
  int32_t* route_count = nullptr;  // of a router's blocks that are done: 0 but while it runs

  static uint64_t SizeBytes(const model::ModelSpec& spec, const StepShape& shape);
  static CudaWorkspace At(const model::ModelSpec& spec, const StepShape& shape, std::byte* base);
};

// Attention's shape as its kernels want it.
kernels::cuda::AttentionShape AttentionShapeOf(const model::AttentionSpec& attention);

}  // namespace convene::device
