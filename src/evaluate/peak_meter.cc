#include "evaluate/peak_meter.h"

#include <algorithm>
#include <span>

#include "evaluate/spread.h"
#include "hardware/measure_memory.h"
#include "kernels/measure_peaks.h"

namespace convene::evaluate {
namespace {

constexpr double kBudgetS = 0.25;
constexpr uint64_t kMinMemoryBytes = uint64_t{256} << 20;

}  // namespace

PeakMeter::PeakMeter(engine::LoadedModel& model, hardware::Isa isa, uint64_t last_level_cache_bytes)
    : model_(model), isa_(isa), last_level_cache_bytes_(last_level_cache_bytes) {}

PeakMeter::PeakMeter(engine::LoadedModel& model, const hardware::GpuProfile& gpu)
    : model_(model),
      of_gpu_(Peaks{.flops_per_s = 1e9 * gpu.bf16_gflops, .bytes_per_s = 1e9 * gpu.read_gbps}) {}

Result<Peaks> PeakMeter::Measure() {
  if (of_gpu_) return *of_gpu_;
  hardware::ThreadPool& pool = model_.pool();
  const kernels::ActivationFormat format = model_.formats().activations;
  const hardware::Rate dots = kernels::MeasureDotPeak(pool, isa_, format, kBudgetS);

  hardware::HugeBuffer buffer;
  std::span<const std::byte> memory = model_.weight_bytes();
  // What a budget leaves may be less; then the weights have to do.
  const uint64_t room_bytes = model_.ledger().available_bytes();
  if (memory.size() < std::max(kMinMemoryBytes, 4 * last_level_cache_bytes_) &&
      room_bytes > memory.size() + 2 * hardware::kHugePageBytes) {
    Result<hardware::HugeBuffer> allocated =
        hardware::AllocateForBandwidth(pool, last_level_cache_bytes_, room_bytes);
    if (!allocated) return allocated.error();
    buffer = *std::move(allocated);
    memory = buffer.bytes();
  }
  const hardware::Rate read = hardware::MeasureReadBandwidth(pool, memory, kBudgetS);

  flops_per_s_.push_back(dots.median);
  bytes_per_s_.push_back(read.median);
  return Peaks{.flops_per_s = dots.median, .bytes_per_s = read.median};
}

Peaks PeakMeter::typical() const {
  if (of_gpu_) return *of_gpu_;
  return {.flops_per_s = SpreadOf(flops_per_s_).median,
          .bytes_per_s = SpreadOf(bytes_per_s_).median};
}

}  // namespace convene::evaluate
