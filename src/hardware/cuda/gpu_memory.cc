#include "hardware/gpu_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "hardware/gpu.h"

namespace convene::hardware {
namespace {

constexpr size_t kPageBytes = 4096;

Error Refused(int gpu, size_t size_bytes, std::string_view purpose, cudaError_t why) {
  static_cast<void>(cudaGetLastError());  // nothing else is wrong with the device
  std::string message = fmt::format("cannot have {} of the memory of GPU {} for {} ({})",
                                    FormatBytes(size_bytes), gpu, purpose, cudaGetErrorString(why));
  if (why != cudaErrorMemoryAllocation) return Unavailable(message);
  if (const Result<uint64_t> free_bytes = FreeGpuBytes(gpu)) {
    message += fmt::format(": {} are free", FormatBytes(*free_bytes));
  }
  return ResourceExhausted(message +
                           "; make what it holds smaller, such as --context, or end what else "
                           "uses it");
}

Error NotPinned(size_t size_bytes, std::string_view purpose, cudaError_t why) {
  static_cast<void>(cudaGetLastError());
  const std::string message =
      fmt::format("cannot pin {} of memory for {} ({})", FormatBytes(size_bytes), purpose,
                  cudaGetErrorString(why));
  return why == cudaErrorMemoryAllocation ? ResourceExhausted(message) : Unavailable(message);
}

// Has the system give all pages now, which takes one thread a second for a few GB.
void WritePages(std::span<std::byte> bytes) {
  constexpr size_t kBytesPerThread = size_t{64} << 20;
  const size_t most = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  const size_t num_threads = std::clamp<size_t>(bytes.size() / kBytesPerThread, 1, most);
  const size_t share =
      (bytes.size() / num_threads + kHugePageBytes) / kHugePageBytes * kHugePageBytes;
  const auto write = [&](size_t begin) {
    const size_t end = std::min(begin + share, bytes.size());
    for (size_t at = begin; at < end; at += kPageBytes) {
      *static_cast<volatile std::byte*>(bytes.data() + at) = std::byte{0};
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(write, i * share);
  write(0);
}

}  // namespace

Result<GpuMemory> GpuMemory::OnDevice(int gpu, size_t size_bytes, std::string_view purpose) {
  if (size_bytes == 0) return GpuMemory();
  void* data = nullptr;
  cudaError_t result = cudaSetDevice(gpu);
  if (result == cudaSuccess) result = cudaMalloc(&data, size_bytes);
  if (result != cudaSuccess) return Refused(gpu, size_bytes, purpose, result);
  GpuMemory memory(static_cast<std::byte*>(data), size_bytes, Origin::kDevice);
  // Streams that do not wait for the default one must find the zeros, too.
  result = cudaMemsetAsync(data, 0, size_bytes, cudaStreamLegacy);
  if (result == cudaSuccess) result = cudaStreamSynchronize(cudaStreamLegacy);
  if (result != cudaSuccess) return Refused(gpu, size_bytes, purpose, result);
  return memory;
}

Result<GpuMemory> GpuMemory::Pinned(int gpu, size_t size_bytes, std::string_view purpose) {
  if (size_bytes == 0) return GpuMemory();
  if (const cudaError_t result = cudaSetDevice(gpu); result != cudaSuccess) {
    return NotPinned(size_bytes, purpose, result);
  }
  // CUDA would take small pages, one after the other.
  Result<HugeBuffer> host = HugeBuffer::Allocate(size_bytes, purpose);
  if (!host) return host.error();
  WritePages(host->bytes());
  cudaError_t result =
      cudaHostRegister(host->data(), size_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (result == cudaSuccess) {
    GpuMemory memory(host->data(), size_bytes, Origin::kRegistered);
    memory.host_ = *std::move(host);
    return memory;
  }
  if (result == cudaErrorMemoryAllocation) return NotPinned(size_bytes, purpose, result);
  // Some virtual machines and containers refuse to pin what they did not allocate.
  static_cast<void>(cudaGetLastError());
  *host = HugeBuffer();
  void* data = nullptr;
  result = cudaHostAlloc(&data, size_bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (result != cudaSuccess) return NotPinned(size_bytes, purpose, result);
  GpuMemory memory(static_cast<std::byte*>(data), size_bytes, Origin::kPinnedByGpu);
  std::fill_n(memory.data_, size_bytes, std::byte{0});
  return memory;
}

void GpuMemory::Free() {
  cudaError_t result = cudaSuccess;
  switch (origin_) {
    case Origin::kNone:
      return;
    case Origin::kDevice:
      result = cudaFree(data_);
      break;
    case Origin::kRegistered:
      result = cudaHostUnregister(data_);
      host_ = {};
      break;
    case Origin::kPinnedByGpu:
      result = cudaFreeHost(data_);
      break;
  }
  origin_ = Origin::kNone;
  // Other results are those of work that failed before, or of a process that is about to end.
  CHECK(result != cudaErrorInvalidValue && result != cudaErrorInvalidDevicePointer,
        "freeing {} bytes: {}", size_bytes_, cudaGetErrorString(result));
}

}  // namespace convene::hardware
