#include "device/cpu/cpu_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cpu/cpu_frame.h"
#include "device/cpu/cpu_kv_cache.h"
#include "device/cpu/cpu_stream.h"

namespace convene::device {

static_assert(kKvBlockTokens == kernels::kKvBlockTokens);

namespace {

// Up to so many columns the sums of a stored weight (at most 255, kernels::kInt8Zero being added)
// times an activation (at most 127) stay within 32 bits.
constexpr int kMostInt8Columns = 1 << 16;

int MostColumns(const model::LayerSpec& layer) {
  int most = std::max(layer.attention.output_dim(), layer.dense_intermediate_size);
  if (layer.attention.latent) most = std::max(most, layer.attention.latent->query_rank);
  if (!layer.moe) return most;
  return std::max({most, layer.moe->intermediate_size, layer.moe->shared_intermediate_size});
}

Status CheckLayer(const model::LayerSpec& layer) {
  if (layer.moe && std::max(layer.moe->top_k, layer.moe->top_expert_groups) > kernels::kMaxTopK) {
    return Error{fmt::format(
        "the model activates {} experts of {} groups per token; at most {} are supported",
        layer.moe->top_k, layer.moe->top_expert_groups, kernels::kMaxTopK)};
  }
  const model::AttentionSpec& attention = layer.attention;
  const int key_dim = attention.latent ? attention.latent->key_dim() : 0;
  const int head_dim = std::max({attention.head_dim, attention.value_dim, key_dim});
  if (head_dim > kernels::kMaxHeadDim) {
    return Error{fmt::format("the model has heads of {} channels; at most {} are supported",
                             head_dim, kernels::kMaxHeadDim)};
  }
  return {};
}

// Everything is done when it is recorded.
class CpuEvent final : public Event {
 public:
  bool IsDone() const override { return true; }
  void Wait() const override {}
};

// The host's memory is the device's.
class CpuCopyLane final : public memory::CopyLane {
 public:
  void Copy(std::byte* to, const std::byte* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  Status Wait() override { return {}; }
};

Status CpuSupports(const model::ModelSpec& spec, kernels::ActivationFormat activations) {
  int most_columns = spec.hidden_size;
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (Status fits = CheckLayer(layer); !fits) return fits;
      most_columns = std::max(most_columns, MostColumns(layer));
    }
  }
  if (activations == kernels::ActivationFormat::kInt8 && most_columns > kMostInt8Columns) {
    return Error{
        fmt::format("a matrix of the model has {} columns; int8 activations are supported "
                    "up to {}: use --activations bf16",
                    most_columns, kMostInt8Columns)};
  }
  return {};
}

class CpuDevice final : public Device {
 public:
  CpuDevice(const kernels::KernelSet& kernels, hardware::ThreadPool& pool)
      : kernels_(kernels), pool_(pool) {}

  const char* name() const override { return "CPU"; }
  memory::TierKind memory() const override { return memory::TierKind::kHost; }
  const std::vector<int>& lane_cpus() const override { return pool_.cpus(); }
  hardware::ThreadPool* host_threads() const override { return &pool_; }

  Status Supports(const model::ModelSpec& spec,
                  kernels::ActivationFormat activations) const override {
    return CpuSupports(spec, activations);
  }

  Result<std::unique_ptr<KvCache>> CreateKvCache(const model::ModelSpec& spec,
                                                 kernels::KvFormat format, int num_blocks,
                                                 memory::Ledger& ledger) override {
    Result<CpuKvCache> cache = CpuKvCache::Create(spec, format, num_blocks, ledger);
    if (!cache) return cache.error();
    return std::unique_ptr<KvCache>(std::make_unique<CpuKvCache>(*std::move(cache)));
  }

  Result<std::unique_ptr<FrameMemory>> CreateFrameMemory(const model::ModelSpec& spec,
                                                         kernels::ActivationFormat activations,
                                                         const FrameShape& shape,
                                                         memory::Ledger& ledger) override {
    Result<Activations> memory = Activations::Create(spec, activations, shape, ledger);
    if (!memory) return memory.error();
    return std::unique_ptr<FrameMemory>(std::make_unique<CpuFrame>(spec, *std::move(memory)));
  }

  Result<std::unique_ptr<Stream>> CreateStream(weights::WeightStore& weights, KvCache& cache,
                                               const StreamOptions& options,
                                               memory::Ledger& ledger) override {
    Result<Workspace> workspace =
        Workspace::Create(weights.spec(), options.activations, options.shape, pool_.size(), ledger);
    if (!workspace) return workspace.error();
    return std::unique_ptr<Stream>(std::make_unique<CpuStream>(
        weights, kernels_, pool_, static_cast<CpuKvCache&>(cache), options, *std::move(workspace)));
  }

  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<CpuEvent>(); }
  Result<std::unique_ptr<memory::CopyLane>> CreateCopyLane() override {
    return std::unique_ptr<memory::CopyLane>(std::make_unique<CpuCopyLane>());
  }

 private:
  const kernels::KernelSet& kernels_;
  hardware::ThreadPool& pool_;
};

memory::Amounts StepBytes(const model::ModelSpec& spec, kernels::ActivationFormat activations,
                          const StepShape& shape, int num_threads) {
  memory::Amounts bytes;
  bytes[memory::Use::kWorking] = Workspace::SizeBytes(spec, activations, shape, num_threads);
  for (const FrameShape& frame : shape.frames) {
    bytes[memory::Use::kWorking] += Activations::SizeBytes(spec, activations, frame);
    bytes[memory::Use::kExchange] += static_cast<uint64_t>(frame.exchange_bytes);
  }
  return bytes;
}

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(const kernels::KernelSet& kernels,
                                      hardware::ThreadPool& pool) {
  return std::make_unique<CpuDevice>(kernels, pool);
}

DeviceBytes CpuBytes() {
  return {.of_kv_block = CpuKvCache::BlockBytes,
          .of_layer_block = CpuKvCache::LayerBlockBytes,
          .of_steps = StepBytes,
          .supports = CpuSupports};
}

}  // namespace convene::device
