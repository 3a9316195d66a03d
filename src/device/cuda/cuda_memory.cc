#include "device/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "device/cuda/cuda_error.h"
#include "device/stream.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/routing.h"
#include "kernels/packed_matrix.h"

namespace convene::device {
namespace {

using kernels::cuda::Bf16;

constexpr uint64_t kAlignment = 256;

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Gives each buffer its place; without memory only the size is found.
class Placer {
 public:
  explicit Placer(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += Aligned(static_cast<uint64_t>(count) * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  template <typename T>
  CudaRows<T> Rows(int64_t rows, int64_t width) {
    const int64_t stride = kernels::PaddedDepth(static_cast<int>(width));
    return {.data = Take<T>(rows * stride), .stride = stride};
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  uint64_t used_ = 0;
};

// The widest of each buffer over all layers.
struct Widths {
  int64_t qkv = 0;
  int64_t queries = 0;
  int64_t output = 0;
  int64_t router = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t intermediate = 0;         // of experts
  int64_t shared_intermediate = 0;  // of blocks that all rows go through
};

template <typename T, typename U>
void Widen(T& width, U wanted) {
  width = std::max(width, static_cast<T>(wanted));
}

Widths WidestOf(const model::ModelSpec& spec) {
  Widths widths;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    Widen(widths.qkv, attention.query_dim() + attention.kv_dim() + attention.value_width());
    Widen(widths.queries, attention.query_dim());
    Widen(widths.output, attention.output_dim());
    Widen(widths.shared_intermediate, layer.dense_intermediate_size);
    if (!layer.moe) continue;
    Widen(widths.router, layer.moe->num_experts + 1);
    Widen(widths.experts, layer.moe->num_experts);
    Widen(widths.top_k, layer.moe->top_k);
    Widen(widths.intermediate, layer.moe->intermediate_size);
    Widen(widths.shared_intermediate, layer.moe->shared_intermediate_size);
  }
  return widths;
}

uint64_t Place(const model::ModelSpec& spec, const FrameShape& shape, std::byte* base,
               CudaActivations& at) {
  const Widths widths = WidestOf(spec);
  const int64_t hidden = spec.hidden_size;
  const int64_t tokens = shape.tokens;
  Placer place(base);
  at.num_slots = shape.slots;
  at.hidden = place.Rows<float>(tokens, hidden);
  at.normed = place.Rows<Bf16>(tokens, hidden);
  at.normed_float = place.Rows<float>(tokens, hidden);
  at.qkv = place.Rows<float>(tokens, widths.qkv);
  at.queries = place.Rows<Bf16>(tokens, widths.queries);
  at.attended = place.Rows<Bf16>(tokens, widths.output);
  at.router_logits = place.Rows<float>(tokens, widths.router);
  at.slot_out = place.Rows<float>(shape.slots, hidden);
  at.shared_out = place.Rows<float>(tokens, hidden);
  at.routing = {.experts = place.Take<int32_t>(tokens * widths.top_k),
                .weights = place.Take<float>(tokens * widths.top_k),
                .first_slot = place.Take<int32_t>(widths.experts + 1),
                .slot_row = place.Take<int32_t>(shape.slots),
                .pair_slot = place.Take<int32_t>(tokens * widths.top_k),
                .scratch = place.Take<int32_t>(
                    kernels::cuda::GroupScratch(shape.tokens, static_cast<int>(widths.experts)))};
  at.all_finite = place.Take<int32_t>(1);
  return place.used();
}

uint64_t Place(const model::ModelSpec& spec, const StepShape& shape, std::byte* base,
               CudaWorkspace& at) {
  const Widths widths = WidestOf(spec);
  const FrameShape& largest = shape.frames.front();
  const int64_t head_rows = std::min(shape.head_rows, Stream::kHeadRows);
  Placer place(base);
  at.expert_in = place.Rows<Bf16>(largest.slots, spec.hidden_size);
  // Of all rows through a block that is no expert, or of all slots through the experts.
  const int64_t slots_width = kernels::PaddedDepth(static_cast<int>(widths.intermediate));
  const int64_t rows_width = kernels::PaddedDepth(static_cast<int>(widths.shared_intermediate));
  at.intermediate = {
      .data = place.Take<Bf16>(std::max(largest.slots * slots_width, largest.tokens * rows_width)),
      .stride = 0};
  at.wanted = place.Rows<Bf16>(head_rows, spec.hidden_size);
  at.logits = place.Rows<float>(head_rows, spec.vocab_size);
  at.largest = place.Take<unsigned long long>(head_rows);
  int64_t partials = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    Widen(partials, kernels::cuda::MostPartialFloats(AttentionShapeOf(layer.attention),
                                                     largest.tokens, shape.context));
  }
  at.partials = place.Take<float>(partials);
  at.route_count = place.Take<int32_t>(1);
  return place.used();
}

}  // namespace

kernels::cuda::AttentionShape AttentionShapeOf(const model::AttentionSpec& attention) {
  return {.num_heads = attention.num_heads,
          .num_kv_heads = attention.num_kv_heads,
          .key_dim = attention.head_dim,
          .value_dim = attention.value_dim,
          .scale = attention.scale,
          .window = attention.window};
}

uint64_t CudaActivations::SizeBytes(const model::ModelSpec& spec, const FrameShape& shape) {
  CudaActivations unplaced;
  return Place(spec, shape, nullptr, unplaced);
}

CudaActivations CudaActivations::At(const model::ModelSpec& spec, const FrameShape& shape,
                                    std::byte* base) {
  CudaActivations activations;
  Place(spec, shape, base, activations);
  return activations;
}

uint64_t CudaWorkspace::SizeBytes(const model::ModelSpec& spec, const StepShape& shape) {
  CudaWorkspace unplaced;
  return Place(spec, shape, nullptr, unplaced);
}

CudaWorkspace CudaWorkspace::At(const model::ModelSpec& spec, const StepShape& shape,
                                std::byte* base) {
  CudaWorkspace workspace;
  Place(spec, shape, base, workspace);
  return workspace;
}

CudaUploads::~CudaUploads() {
  for (Chunk& chunk : chunks_) cudaFreeHost(chunk.host);
}

void CudaUploads::Clear() {
  chunk_ = 0;
  for (Chunk& chunk : chunks_) chunk.used = chunk.flushed = 0;
}

Result<const std::byte*> CudaUploads::AddBytes(std::span<const std::byte> bytes) {
  const uint64_t wanted = Aligned(std::max<uint64_t>(1, bytes.size()));
  while (chunk_ < chunks_.size() && chunks_[chunk_].used + wanted > chunks_[chunk_].size_bytes) {
    ++chunk_;
  }
  if (chunk_ == chunks_.size()) {
    Chunk chunk;
    chunk.size_bytes = std::max(wanted, kChunkBytes);
    auto device = ledger_.Allocate(memory::Use::kWorking, chunk.size_bytes);
    if (!device) return device.error();
    chunk.device = *std::move(device);
    void* host = nullptr;
    if (Status done = CudaStatus(cudaMallocHost(&host, chunk.size_bytes), "pinning host memory");
        !done) {
      return done.error();
    }
    chunk.host = static_cast<std::byte*>(host);
    chunks_.push_back(std::move(chunk));
  }
  Chunk& chunk = chunks_[chunk_];
  if (!bytes.empty()) std::memcpy(chunk.host + chunk.used, bytes.data(), bytes.size());
  const std::byte* const at = chunk.device.data() + chunk.used;
  chunk.used += wanted;
  return at;
}

Status CudaUploads::Flush(kernels::cuda::StreamHandle stream) {
  for (Chunk& chunk : chunks_) {
    if (chunk.flushed == chunk.used) continue;
    const cudaError_t copied =
        cudaMemcpyAsync(chunk.device.data() + chunk.flushed, chunk.host + chunk.flushed,
                        chunk.used - chunk.flushed, cudaMemcpyHostToDevice, stream);
    if (Status done = CudaStatus(copied, "copying a step's rows"); !done) return done;
    chunk.flushed = chunk.used;
  }
  return {};
}

}  // namespace convene::device
