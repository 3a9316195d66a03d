#include "hardware/gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "base/read_file.h"

namespace convene::hardware {
namespace {

// The architecture that kernels are built for (CMakeLists.txt).
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;

std::string VersionName(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Error DriverError(cudaError_t result) {
  static_cast<void>(cudaGetLastError());
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (result == cudaErrorInsufficientDriver) {
    return Unavailable(fmt::format(
        "the GPU's driver knows CUDA up to {}, this build of convene has {}: install a newer "
        "driver, or build convene with an older CUDA",
        VersionName(driver), VersionName(runtime)));
  }
  return Unavailable(fmt::format("the GPU's driver does not work: {} ({}); nvidia-smi may say more",
                                 cudaGetErrorString(result), cudaGetErrorName(result)));
}

int Attribute(cudaDeviceAttr attribute, int gpu) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, gpu) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return value;
}

// What the kernel tells of a device of the bus, without the line's end; empty: nothing.
std::string OfPciDevice(const std::string& bus_id, const char* name) {
  constexpr uint64_t kMostBytes = 4096;
  Result<std::string> text =
      ReadFile(fmt::format("/sys/bus/pci/devices/{}/{}", bus_id, name), kMostBytes);
  if (!text) return "";
  while (!text->empty() && std::isspace(static_cast<unsigned char>(text->back()))) text->pop_back();
  return *std::move(text);
}

void ReadPci(Gpu& gpu) {
  std::array<char, 32> name = {};
  if (cudaDeviceGetPCIBusId(name.data(), static_cast<int>(name.size()), gpu.index) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  std::string bus_id = name.data();
  std::ranges::transform(bus_id, bus_id.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // Not the current ones: an idle link is slower.
  const std::string speed = OfPciDevice(bus_id, "max_link_speed");
  const std::string width = OfPciDevice(bus_id, "max_link_width");
  if (!speed.empty() && !width.empty()) gpu.pci_link = fmt::format("{} x{}", speed, width);
  const std::string node = OfPciDevice(bus_id, "numa_node");
  int number = -1;
  std::from_chars(node.data(), node.data() + node.size(), number);
  if (number >= 0) gpu.numa_node = number;
}

}  // namespace

bool IsBuiltWithCuda() { return true; }

Result<std::vector<Gpu>> FindGpus() {
  std::vector<Gpu> gpus;
  int driver = 0;
  // Without a driver this gives 0, and counting GPUs would blame its age.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    static_cast<void>(cudaGetLastError());
    return gpus;
  }
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorNoDevice) {
    static_cast<void>(cudaGetLastError());
    return gpus;
  }
  if (counted != cudaSuccess) return DriverError(counted);
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties = {};
    const cudaError_t result = cudaGetDeviceProperties(&properties, index);
    if (result != cudaSuccess) return DriverError(result);
    Gpu gpu{.index = index,
            .name = properties.name,
            .memory_bytes = properties.totalGlobalMem,
            .num_multiprocessors = properties.multiProcessorCount,
            .compute_major = properties.major,
            .compute_minor = properties.minor,
            .clock_mhz = Attribute(cudaDevAttrClockRate, index) / 1e3,
            .l2_bytes = static_cast<uint64_t>(std::max(0, properties.l2CacheSize)),
            .driver_version = driver};
    static_cast<void>(cudaRuntimeGetVersion(&gpu.runtime_version));
    ReadPci(gpu);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Status CanCompute(const Gpu& gpu) {
  if (gpu.compute_major == kComputeMajor && gpu.compute_minor == kComputeMinor) return {};
  return Unavailable(fmt::format(
      "GPU {} ({}) has compute capability {}.{}; the kernels of this build are for {}.{} (H100, "
      "H200)",
      gpu.index, gpu.name, gpu.compute_major, gpu.compute_minor, kComputeMajor, kComputeMinor));
}

Result<uint64_t> FreeGpuBytes(int gpu) {
  const Result<std::vector<Gpu>> gpus = FindGpus();
  if (!gpus) return gpus.error();
  if (gpu < 0 || gpu >= std::ssize(*gpus)) {
    return Unavailable(fmt::format(
        "GPU {} was asked for, but this process may use {}; see CUDA_VISIBLE_DEVICES", gpu,
        gpus->empty() ? "none" : fmt::format("GPUs 0 to {} only", gpus->size() - 1)));
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaError_t result = cudaSetDevice(gpu);
  if (result == cudaSuccess) result = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (result != cudaSuccess) return DriverError(result);
  return uint64_t{free_bytes};
}

}  // namespace convene::hardware
