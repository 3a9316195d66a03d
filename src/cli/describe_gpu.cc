#include "cli/describe_gpu.h"

#include <fmt/format.h>

#include "base/units.h"

namespace convene::cli {
namespace {

std::string VersionName(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string After(const std::string& phrase) { return phrase.empty() ? "" : ", " + phrase; }

}  // namespace

std::string DescribeGpus() {
  const Result<std::vector<hardware::Gpu>> gpus = hardware::FindGpus();
  if (!gpus) return fmt::format("  {:<14}{}\n", "GPUs", gpus.error().message);
  std::string text;
  for (const hardware::Gpu& gpu : *gpus) {
    text +=
        fmt::format("  {:<14}{}, {}, {} multiprocessors{}{}{}\n", fmt::format("GPU {}", gpu.index),
                    gpu.name, FormatBytes(gpu.memory_bytes), gpu.num_multiprocessors,
                    After(gpu.clock_mhz > 0 ? fmt::format("up to {:.0f} MHz", gpu.clock_mhz) : ""),
                    After(gpu.pci_link),
                    After(gpu.numa_node ? fmt::format("NUMA node {}", *gpu.numa_node) : ""));
    const Status can = hardware::CanCompute(gpu);
    text += fmt::format("  {:<14}compute capability {}.{}, CUDA {}, driver for CUDA up to {}{}\n",
                        "", gpu.compute_major, gpu.compute_minor, VersionName(gpu.runtime_version),
                        VersionName(gpu.driver_version), can ? "" : "; not usable here");
  }
  return text;
}

std::string DescribeMeasured(const hardware::GpuProfile& gpu) {
  std::string text =
      fmt::format("\nGPU {}: {}, {}, {} multiprocessors{}\n", gpu.index, gpu.name,
                  FormatBytes(gpu.memory_bytes), gpu.num_multiprocessors, After(gpu.pci_link));
  text += fmt::format("products      bf16     {:10.1f} GFLOP/s  wgmma\n", gpu.bf16_gflops);
  text += fmt::format("multiply-adds float32  {:10.1f} GFLOP/s\n", gpu.f32_gflops);
  text += fmt::format("its memory    read     {:10.1f} GB/s\n", gpu.read_gbps);
  text += fmt::format("              copy     {:10.1f} GB/s     read and written\n", gpu.copy_gbps);
  text += fmt::format("from the host pinned   {:10.1f} GB/s\n", gpu.to_device_gbps);
  text += fmt::format("              pageable {:10.1f} GB/s\n", gpu.pageable_to_device_gbps);
  text += fmt::format("to the host   pinned   {:10.1f} GB/s\n", gpu.from_device_gbps);
  text += fmt::format("              pageable {:10.1f} GB/s\n", gpu.pageable_from_device_gbps);
  text += fmt::format("both ways     pinned   {:10.1f} GB/s     together\n", gpu.both_ways_gbps);
  text +=
      fmt::format("staging                {:10.1f} GB/s     pageable to pinned, by the threads\n",
                  gpu.staging_gbps);
  text += fmt::format("kernels       launch   {:10.2f} µs       {:.2f} µs with waiting\n",
                      gpu.launch_us, gpu.launch_and_wait_us);
  text += fmt::format("4 KiB         to it    {:10.2f} µs       {:.2f} µs from it\n",
                      gpu.small_copy_us, gpu.small_fetch_us);
  return text;
}

}  // namespace convene::cli
