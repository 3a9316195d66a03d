#include "evaluate/measure_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/units.h"
#include "hardware/gpu.h"
#include "hardware/measure_disk.h"
#include "hardware/measure_gpu.h"
#include "hardware/measure_memory.h"
#include "hardware/numa.h"
#include "kernels/measure_order.h"
#include "kernels/measure_peaks.h"
#include "kernels/measure_streaming.h"
#include "runtime/measure_forms.h"

namespace convene::evaluate {
namespace {

constexpr double kGigaOfMachine = 1e9;
constexpr uint64_t kMaxDiskFileBytes = uint64_t{2} << 30;
// Between two reads of a weight so many times the caches' bytes are read, nearly.
constexpr size_t kMemoryOfCaches = 4;
// Of weights in a product whose way of reading is timed: each thread begins some streams.
constexpr size_t kLeastBytesAtOnce = size_t{32} << 20;
constexpr size_t kBytesOfThread = size_t{8} << 20;
constexpr double kStreamingBudgets = 3;  // there are 24 combinations of format and rows

Status MeasureDiskOfMachine(const MeasureOptions& options, hardware::ThreadPool& pool,
                            hardware::Profile& profile) {
  std::error_code ignored;  // if it is not there now, the measurement says so
  if (options.disk_is_required) {
    if (!std::filesystem::is_directory(options.disk_directory, ignored)) {
      return Error{fmt::format("{} is not a directory; name one on the disk to be measured",
                               options.disk_directory)};
    }
  } else {
    std::filesystem::create_directories(options.disk_directory, ignored);
  }

  const Result<hardware::DiskRate> disk =
      hardware::MeasureDiskRead(options.disk_directory, kMaxDiskFileBytes, options.budget_s, &pool,
                                options.most_memory_bytes);
  if (!disk && options.disk_is_required) return disk.error();
  if (!disk) {
    PrintNote("disk not measured: {}\n", disk.error().message);
    return {};
  }
  SetDisk(*disk, options.disk_directory, profile);
  return {};
}

// Orders, forms and ways of reading panels. `memory` is for weights: it has the same byte, 0x11,
// everywhere, which is no denormal number in any format.
Status MeasureChoices(const MeasureOptions& options, hardware::ThreadPool& pool,
                      std::span<const std::byte> memory, hardware::Profile& profile) {
  const kernels::KernelSet& kernels = *options.choices_of;
  const Result<int> dense_from =
      kernels::MeasureDenseFromRows(pool, kernels, options.budget_s, memory);
  if (!dense_from) return dense_from.error();
  profile.dense_from_rows = *dense_from;
  const Result<int> expand_from = runtime::MeasureExpandFromTokens(pool, kernels, options.budget_s);
  if (!expand_from) return expand_from.error();
  profile.expand_from_tokens = *expand_from;

  // Of weights in the caches nothing is learnt about the memory: nothing is kept then.
  if (memory.size() < kMemoryOfCaches * profile.last_level_cache_bytes) {
    PrintNote(
        "how panels are best read is not measured: {} of memory are less than {} times the "
        "caches, {}\n",
        FormatBytes(memory.size()), kMemoryOfCaches, FormatBytes(profile.last_level_cache_bytes));
    return {};
  }
  const size_t bytes_at_once =
      std::min(memory.size(),
               std::max(kLeastBytesAtOnce, kBytesOfThread * static_cast<size_t>(pool.size())));
  const Result<kernels::MeasuredStreaming> streaming = kernels::MeasureStreaming(
      pool, kernels, kStreamingBudgets * options.budget_s, memory, bytes_at_once);
  if (!streaming) return streaming.error();
  for (const kernels::StreamingChange& change : streaming->changes) {
    PrintNote("panels of {}\n", kernels::Describe(change));
  }
  if (streaming->num_measured > 0) profile.panel_streaming = streaming->choice.numbers();
  return {};
}

}  // namespace

void SetDisk(const hardware::DiskRate& disk, const std::string& directory,
             hardware::Profile& profile) {
  profile.disk_gbps = disk.read.mean / kGigaOfMachine;
  profile.disk_gbps_beside = disk.beside_bytes_per_second / kGigaOfMachine;
  profile.disk_core_seconds_per_gb = disk.core_seconds_per_byte * kGigaOfMachine;
  profile.disk_direct = disk.direct;
  profile.disk_directory = directory;
}

hardware::Profile DescribeMachine(const hardware::Topology& topology,
                                  const hardware::ThreadPool& pool, hardware::Isa isa) {
  hardware::Profile profile;
  profile.SetCpu(topology.cpu);
  profile.cpus = pool.cpus();
  profile.isa = hardware::IsaName(isa);
  profile.last_level_cache_bytes = topology.last_level_cache_bytes();
  profile.num_numa_nodes = topology.num_numa_nodes;
  profile.date = hardware::CurrentDate();
  return profile;
}

Result<hardware::Profile> MeasureMachine(const hardware::Topology& topology,
                                         hardware::ThreadPool& pool, hardware::Isa isa,
                                         const MeasureOptions& options) {
  hardware::Profile profile = DescribeMachine(topology, pool, isa);
  profile.disk_directory = options.disk_directory;

  // First, since it may fail.
  if (const Status disk = MeasureDiskOfMachine(options, pool, profile); !disk) return disk.error();
  const kernels::DotPeaks peaks = kernels::MeasureDotPeaks(pool, isa, 3 * options.budget_s);
  profile.f32_gflops = peaks.f32.median / kGigaOfMachine;
  profile.bf16_gflops = peaks.bf16.median / kGigaOfMachine;
  profile.int8_gops = peaks.int8.median / kGigaOfMachine;

  const Result<hardware::HugeBuffer> memory = hardware::AllocateForBandwidth(
      pool, profile.last_level_cache_bytes, options.most_memory_bytes);
  if (!memory) return memory.error();
  const hardware::Rate read =
      hardware::MeasureReadBandwidth(pool, memory->bytes(), options.budget_s);
  profile.read_gbps = read.median / kGigaOfMachine;
  profile.huge_page_share =
      static_cast<double>(memory->huge_page_bytes()) / static_cast<double>(memory->size_bytes());
  // Of memory that is not written yet, as weights are when they are placed.
  const Result<hardware::HugeBuffer> unwritten =
      hardware::HugeBuffer::Allocate(hardware::kHugePageBytes, "trying NUMA placement");
  if (!unwritten) return unwritten.error();
  const Result<int> interleaved =
      hardware::PlaceMemory(unwritten->bytes(), pool.cpus(), hardware::NumaPolicy::kAuto);
  if (!interleaved) return interleaved.error();
  profile.num_interleaved_nodes = *interleaved;
  if (options.choices_of) {
    const Status chosen = MeasureChoices(options, pool, memory->bytes(), profile);
    if (!chosen) return chosen.error();
  }
  return profile;
}

std::vector<hardware::GpuProfile> MeasureGpus(hardware::ThreadPool& pool, double budget_s) {
  std::vector<hardware::GpuProfile> profiles;
  const Result<std::vector<hardware::Gpu>> gpus = hardware::FindGpus();
  if (!gpus) {
    PrintNote("GPUs not measured: {}\n", gpus.error().message);
    return profiles;
  }
  for (const hardware::Gpu& gpu : *gpus) {
    Result<hardware::GpuProfile> profile = hardware::MeasureGpu(gpu, pool, budget_s);
    if (profile) {
      profiles.push_back(*std::move(profile));
    } else {
      PrintNote("GPU {} not measured: {}\n", gpu.index, profile.error().message);
    }
  }
  return profiles;
}

}  // namespace convene::evaluate
