#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "device/cuda.h"
#include "device/cuda/cuda_copy_lane.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/cuda_frame.h"
#include "device/cuda/cuda_kv_cache.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/rows.h"

namespace convene::device {
namespace {

// Kernels use instructions that only this one has.
constexpr int kComputeCapability = 90;

// Of heads that kernels/cuda/attention.h has without latents.
constexpr int kMostHeadDim = 256;
constexpr int kMostExperts = 512;

Status CheckLayer(const model::LayerSpec& layer) {
  if (layer.attention.latent) {
    return Error{"models with latent attention do not run on a GPU yet; leave --device out"};
  }
  if (std::max(layer.attention.head_dim, layer.attention.value_dim) > kMostHeadDim) {
    return Error{
        fmt::format("the model has heads of {} channels; on a GPU at most {} are "
                    "supported: leave --device out",
                    std::max(layer.attention.head_dim, layer.attention.value_dim), kMostHeadDim)};
  }
  if (layer.moe &&
      (layer.moe->num_experts > kMostExperts || layer.moe->top_k > kernels::kMaxTopK)) {
    return Error{
        fmt::format("the model has {} experts of which a token gets {}; on a GPU at most "
                    "{} and {} are supported: leave --device out",
                    layer.moe->num_experts, layer.moe->top_k, kMostExperts, kernels::kMaxTopK)};
  }
  return {};
}

Status CudaSupports(const model::ModelSpec& spec, kernels::ActivationFormat activations) {
  if (activations != kernels::ActivationFormat::kBf16) {
    return Error{"a GPU computes in bf16 alone: use --weights bf16 and --activations bf16"};
  }
  if (spec.has_encoder()) {
    return Error{"models with an encoder do not run on a GPU yet; leave --device out"};
  }
  if (spec.hidden_size > kernels::cuda::kMaxNormSize) {
    return Error{
        fmt::format("the model has rows of {} channels; on a GPU at most {} are supported: "
                    "leave --device out",
                    spec.hidden_size, kernels::cuda::kMaxNormSize)};
  }
  for (const model::LayerSpec& layer : spec.layers) {
    if (Status fits = CheckLayer(layer); !fits) return fits;
  }
  return {};
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int gpu, const cudaDeviceProp& properties, hardware::ThreadPool* pool)
      : gpu_(gpu),
        name_(properties.name),
        num_multiprocessors_(properties.multiProcessorCount),
        pool_(pool) {}

  const char* name() const override { return name_.c_str(); }
  memory::TierKind memory() const override { return memory::TierKind::kDevice; }
  const std::vector<int>& lane_cpus() const override {
    static const std::vector<int> none;
    return pool_ != nullptr ? pool_->cpus() : none;
  }
  hardware::ThreadPool* host_threads() const override { return pool_; }

  Status Supports(const model::ModelSpec& spec,
                  kernels::ActivationFormat activations) const override {
    return CudaSupports(spec, activations);
  }

  Result<std::unique_ptr<KvCache>> CreateKvCache(const model::ModelSpec& spec,
                                                 kernels::KvFormat format, int num_blocks,
                                                 memory::Ledger& ledger) override {
    if (Status used = Use(); !used) return used.error();
    if (format != kernels::KvFormat::kBf16) {
      return Error{"on a GPU keys and values are cached in bf16 alone: use --kv-cache bf16"};
    }
    auto cache = CudaKvCache::Create(spec, num_blocks, ledger);
    if (!cache) return cache.error();
    return std::unique_ptr<KvCache>(std::make_unique<CudaKvCache>(*std::move(cache)));
  }

  Result<std::unique_ptr<FrameMemory>> CreateFrameMemory(const model::ModelSpec& spec,
                                                         kernels::ActivationFormat,
                                                         const FrameShape& shape,
                                                         memory::Ledger& ledger) override {
    if (Status used = Use(); !used) return used.error();
    auto frame = CudaFrame::Create(spec, shape, ledger);
    if (!frame) return frame.error();
    return std::unique_ptr<FrameMemory>(*std::move(frame));
  }

  Result<std::unique_ptr<Stream>> CreateStream(weights::WeightStore& weights, KvCache& cache,
                                               const StreamOptions& options,
                                               memory::Ledger& ledger) override {
    if (Status used = Use(); !used) return used.error();
    if (Status fits = Supports(weights.spec(), options.activations); !fits) return fits.error();
    if (options.roles.num_ranks() > 1) {
      return Error{
          "a model is on one GPU alone yet: use --layout of one rank, or leave --device "
          "out"};
    }
    if (weights.formats().matrices != kernels::WeightFormat::kBf16) {
      return Error{"on a GPU weights are bf16 alone: use --weights bf16"};
    }
    auto stream = CudaStream::Create(weights, static_cast<CudaKvCache&>(cache), options,
                                     num_multiprocessors_, ledger);
    if (!stream) return stream.error();
    return std::unique_ptr<Stream>(*std::move(stream));
  }

  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<CudaEvent>(); }
  Result<std::unique_ptr<memory::CopyLane>> CreateCopyLane() override {
    if (Status used = Use(); !used) return used.error();
    auto lane = CudaCopyLane::Create();
    if (!lane) return lane.error();
    return std::unique_ptr<memory::CopyLane>(*std::move(lane));
  }

 private:
  // CUDA's calls are about the device of the thread that calls.
  Status Use() const { return CudaStatus(cudaSetDevice(gpu_), "choosing the GPU"); }

  int gpu_;
  std::string name_;
  int num_multiprocessors_;
  hardware::ThreadPool* pool_;
};

Result<cudaDeviceProp> PropertiesOf(int gpu) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || count == 0) {
    return Unavailable(fmt::format(
        "GPU {} was asked for, but there is none here ({}); leave --device out: the CPU is used "
        "where no device is asked for",
        gpu, counted == cudaSuccess ? "none is visible" : cudaGetErrorString(counted)));
  }
  if (gpu < 0 || gpu >= count) {
    return Unavailable(fmt::format("GPU {} was asked for, but there are {}: use one of 0 to {}",
                                   gpu, count, count - 1));
  }
  cudaDeviceProp properties = {};
  if (Status done = CudaStatus(cudaGetDeviceProperties(&properties, gpu), "describing the GPU");
      !done) {
    return done.error();
  }
  if (10 * properties.major + properties.minor != kComputeCapability) {
    return Unavailable(fmt::format(
        "GPU {} ({}) has compute capability {}.{}; convene's kernels are for 9.0 (H100, H200): "
        "leave --device out",
        gpu, properties.name, properties.major, properties.minor));
  }
  return properties;
}

memory::Amounts StepBytes(const model::ModelSpec& spec, kernels::ActivationFormat,
                          const StepShape& shape, int) {
  memory::Amounts bytes;
  bytes[memory::Use::kWorking] = CudaStream::WorkingBytes(spec, shape);
  for (const FrameShape& frame : shape.frames) {
    bytes[memory::Use::kWorking] +=
        CudaActivations::SizeBytes(spec, frame) + CudaUploads::kChunkBytes;
  }
  return bytes;
}

Result<uint64_t> WeightsBeside(const model::ModelSpec& spec, weights::DeviceLoans loans) {
  if (Status can = CudaWeights::CanTakeTurns(spec, loans); !can) return can.error();
  return CudaWeights::SizeBytes(spec, loans);
}

}  // namespace

Result<std::unique_ptr<Device>> MakeCudaDevice(int gpu, hardware::ThreadPool* pool) {
  const Result<cudaDeviceProp> properties = PropertiesOf(gpu);
  if (!properties) return properties.error();
  if (Status used = CudaStatus(cudaSetDevice(gpu), "choosing the GPU"); !used) return used.error();
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(gpu, *properties, pool));
}

Result<DeviceBytes> CudaBytes(int gpu) {
  if (const auto properties = PropertiesOf(gpu); !properties) return properties.error();
  return DeviceBytes{.of_kv_block = CudaKvCache::BlockBytes,
                     .of_layer_block = CudaKvCache::LayerBlockBytes,
                     .of_steps = StepBytes,
                     .of_weights_beside = WeightsBeside,
                     .supports = CudaSupports};
}

}  // namespace convene::device
