#include "hardware/gpu.h"

#include <fmt/format.h>

#include "hardware/gpu_memory.h"
#include "hardware/measure_gpu.h"

namespace convene::hardware {
namespace {

Error NoCuda(int gpu) {
  return Unavailable(
      fmt::format("GPU {} was asked for, but this build of convene has no CUDA; build it with "
                  "cmake -DCONVENE_CUDA=ON",
                  gpu));
}

}  // namespace

bool IsBuiltWithCuda() { return false; }

Result<std::vector<Gpu>> FindGpus() { return std::vector<Gpu>(); }

Status CanCompute(const Gpu& gpu) { return NoCuda(gpu.index); }

Result<uint64_t> FreeGpuBytes(int gpu) { return NoCuda(gpu); }

Result<GpuMemory> GpuMemory::OnDevice(int gpu, size_t, std::string_view) { return NoCuda(gpu); }

Result<GpuMemory> GpuMemory::Pinned(int gpu, size_t, std::string_view) { return NoCuda(gpu); }

void GpuMemory::Free() {}

Result<GpuProfile> MeasureGpu(const Gpu& gpu, ThreadPool&, double) { return NoCuda(gpu.index); }

}  // namespace convene::hardware
