#include "hardware/measure_gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "hardware/cuda/gpu_peaks.h"
#include "hardware/gpu_memory.h"
#include "hardware/huge_buffer.h"
#include "hardware/measure_rate.h"
#include "hardware/memory_status.h"

namespace convene::hardware {
namespace {

constexpr double kGiga = 1e9;
constexpr size_t kMib = size_t{1} << 20;
constexpr size_t kMostHostBytes = size_t{1} << 30;    // pinned, and as many that are not
constexpr size_t kMostDeviceBytes = size_t{4} << 30;  // far beyond the last cache
constexpr size_t kSmallBytes = 4096;
constexpr int kSmallTimes = 100;

class StreamOwner {
 public:
  StreamOwner() { result_ = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  ~StreamOwner() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaError_t result() const { return result_; }
  operator cudaStream_t() const { return stream_; }  // NOLINT: where CUDA wants one

 private:
  cudaStream_t stream_ = nullptr;
  cudaError_t result_ = cudaSuccess;
};

class Meter {
 public:
  Meter(const Gpu& gpu, ThreadPool& pool, double budget_s)
      : gpu_(gpu), pool_(pool), seconds_(budget_s / 4) {}

  Status Allocate() {
    const Result<uint64_t> free_bytes = FreeGpuBytes(gpu_.index);
    if (!free_bytes) return free_bytes.error();
    const Result<AvailableMemory> available = ReadAvailableMemory();
    if (!available) return available.error();
    device_bytes_ = std::min<size_t>(kMostDeviceBytes, *free_bytes / 2) / kMib * kMib;
    host_bytes_ = std::min<size_t>({kMostHostBytes, available->bytes / 8, device_bytes_});
    host_bytes_ = host_bytes_ / (2 * kMib) * (2 * kMib);
    if (host_bytes_ == 0) {
      return ResourceExhausted(fmt::format(
          "too little memory is free to measure GPU {} with, its own or the host's", gpu_.index));
    }
    constexpr const char* kPurpose = "measuring the GPU";
    Result<GpuMemory> device = GpuMemory::OnDevice(gpu_.index, device_bytes_, kPurpose);
    if (!device) return device.error();
    Result<GpuMemory> out = GpuMemory::OnDevice(gpu_.index, sizeof(float), kPurpose);
    if (!out) return out.error();
    Result<GpuMemory> pinned = GpuMemory::Pinned(gpu_.index, host_bytes_, kPurpose);
    if (!pinned) return pinned.error();
    Result<HugeBuffer> pageable = HugeBuffer::Allocate(host_bytes_, kPurpose);
    if (!pageable) return pageable.error();
    device_ = *std::move(device);
    out_ = *std::move(out);
    pinned_ = *std::move(pinned);
    pageable_ = *std::move(pageable);
    ForEachPiece([&](size_t at) { std::memset(pageable_.data() + at, 1, kMib); });
    return Failure();
  }

  // The first thing that failed, if anything did.
  Status Failure() const {
    cudaError_t result = failure_;
    if (result == cudaSuccess) result = cudaGetLastError();
    if (result == cudaSuccess) result = cudaDeviceSynchronize();
    for (const StreamOwner* stream : {&stream_, &other_stream_}) {
      if (result == cudaSuccess) result = stream->result();
    }
    if (result == cudaSuccess) return {};
    return Internal(fmt::format("measuring GPU {} failed: {} ({})", gpu_.index,
                                cudaGetErrorString(result), cudaGetErrorName(result)));
  }

  void MeasureCopies(GpuProfile& profile) {
    profile.to_device_gbps = Copies(device_.data(), pinned_.data(), host_bytes_);
    profile.from_device_gbps = Copies(pinned_.data(), device_.data(), host_bytes_);
    const size_t half = host_bytes_ / 2;
    profile.both_ways_gbps = RateOf([&] {
      cudaMemcpyAsync(device_.data(), pinned_.data(), half, cudaMemcpyDefault, stream_);
      cudaMemcpyAsync(pinned_.data() + half, device_.data() + half, half, cudaMemcpyDefault,
                      other_stream_);
      return static_cast<double>(2 * half);
    });
    profile.pageable_to_device_gbps = Copies(device_.data(), pageable_.data(), host_bytes_);
    profile.pageable_from_device_gbps = Copies(pageable_.data(), device_.data(), host_bytes_);
    profile.staging_gbps = RateOf([&] {
      ForEachPiece(
          [&](size_t at) { std::memcpy(pinned_.data() + at, pageable_.data() + at, kMib); });
      return static_cast<double>(host_bytes_);
    });
  }

  void MeasureMemory(GpuProfile& profile) {
    constexpr int kTimes = 8;  // that the launch counts for nothing
    profile.read_gbps = RateOf([&] {
      for (int i = 0; i < kTimes; ++i) {
        EnqueueRead(gpu_.num_multiprocessors, device_.data(), device_bytes_, out(), stream_);
      }
      return static_cast<double>(kTimes * device_bytes_);
    });
    const size_t half = device_bytes_ / 2;
    profile.copy_gbps = RateOf([&] {
      for (int i = 0; i < kTimes; ++i) {
        cudaMemcpyAsync(device_.data(), device_.data() + half, half, cudaMemcpyDeviceToDevice,
                        stream_);
      }
      return static_cast<double>(kTimes * 2 * half);
    });
  }

  void MeasurePeaks(GpuProfile& profile) {
    profile.bf16_gflops =
        RateOf([&] { return EnqueueBf16Products(gpu_.num_multiprocessors, out(), stream_); });
    profile.f32_gflops =
        RateOf([&] { return EnqueueF32MultiplyAdds(gpu_.num_multiprocessors, out(), stream_); });
  }

  void MeasureLatencies(GpuProfile& profile) {
    profile.launch_us = MicrosecondsOf([&] { EnqueueNothing(stream_); });
    profile.launch_and_wait_us = MicrosecondsOf([&] {
      EnqueueNothing(stream_);
      cudaStreamSynchronize(stream_);
    });
    profile.small_copy_us = MicrosecondsOf([&] {
      cudaMemcpyAsync(device_.data(), pinned_.data(), kSmallBytes, cudaMemcpyHostToDevice, stream_);
      cudaStreamSynchronize(stream_);
    });
    profile.small_fetch_us = MicrosecondsOf([&] {
      cudaMemcpyAsync(pinned_.data(), device_.data(), kSmallBytes, cudaMemcpyDeviceToHost, stream_);
      cudaStreamSynchronize(stream_);
    });
  }

 private:
  float* out() const { return reinterpret_cast<float*>(out_.data()); }

  template <typename F>
  void ForEachPiece(const F& of_place) {
    pool_.ParallelFor(static_cast<int64_t>(host_bytes_ / kMib),
                      [&](int64_t piece, int) { of_place(static_cast<size_t>(piece) * kMib); });
  }

  // In 10^9 of what `enqueue` says it did, each second. The first pass is not counted.
  template <typename F>
  double RateOf(const F& enqueue) {
    const auto pass = [&] {
      const double done = enqueue();
      for (const cudaError_t result : {cudaGetLastError(), cudaStreamSynchronize(stream_),
                                       cudaStreamSynchronize(other_stream_)}) {
        if (failure_ == cudaSuccess) failure_ = result;
      }
      return failure_ == cudaSuccess ? done : 0;
    };
    if (pass() == 0) return 0;
    return MeasureRate(seconds_, pass).median / kGiga;
  }

  double Copies(void* to, const void* from, size_t size_bytes) {
    return RateOf([&] {
      cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, stream_);
      return static_cast<double>(size_bytes);
    });
  }

  template <typename F>
  double MicrosecondsOf(const F& once) {
    const double rate = RateOf([&] {
      for (int i = 0; i < kSmallTimes; ++i) once();
      return 1.0 * kSmallTimes;
    });
    return rate > 0 ? 1e-3 / rate : 0;
  }

  const Gpu& gpu_;
  ThreadPool& pool_;
  double seconds_;
  cudaError_t failure_ = cudaSuccess;
  size_t device_bytes_ = 0;
  size_t host_bytes_ = 0;
  GpuMemory device_;
  GpuMemory out_;
  GpuMemory pinned_;
  HugeBuffer pageable_;
  StreamOwner stream_;
  StreamOwner other_stream_;
};

}  // namespace

Result<GpuProfile> MeasureGpu(const Gpu& gpu, ThreadPool& pool, double budget_s) {
  if (const Status can = CanCompute(gpu); !can) return can.error();
  // Streams are of the GPU that is chosen when they are made.
  if (const cudaError_t result = cudaSetDevice(gpu.index); result != cudaSuccess) {
    return Unavailable(fmt::format("GPU {}: {}", gpu.index, cudaGetErrorString(result)));
  }
  GpuProfile profile{.index = gpu.index,
                     .name = gpu.name,
                     .memory_bytes = gpu.memory_bytes,
                     .num_multiprocessors = gpu.num_multiprocessors,
                     .l2_bytes = gpu.l2_bytes,
                     .pci_link = gpu.pci_link};
  Meter meter(gpu, pool, budget_s);
  if (const Status allocated = meter.Allocate(); !allocated) return allocated.error();
  meter.MeasureCopies(profile);
  meter.MeasureMemory(profile);
  meter.MeasureLatencies(profile);
  meter.MeasurePeaks(profile);
  if (const Status failed = meter.Failure(); !failed) return failed.error();
  return profile;
}

}  // namespace convene::hardware
