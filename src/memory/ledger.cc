#include "memory/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/units.h"
#include "hardware/gpu.h"
#include "hardware/memory_status.h"
#include "hardware/numa.h"

namespace convene::memory {
namespace {

const char* Name(Use use) {
  constexpr std::array<const char*, kNumUses> kNames = {
      "weights", "KV cache", "working memory", "exchange buffers", "staging buffers", "program"};
  return kNames[static_cast<size_t>(use)];
}

// Code, local memory of kernels and what allocations are rounded up to.
constexpr uint64_t kOfCuda = uint64_t{512} << 20;

}  // namespace

std::string Tier::name() const {
  constexpr std::array kNames = {"memory", "pinned memory", "device memory", "disk space"};
  const std::string name = kNames[static_cast<size_t>(kind)];
  if (!numa_node) return name;
  return spills ? fmt::format("{} (NUMA node {} first)", name, *numa_node)
                : fmt::format("{} of NUMA node {}", name, *numa_node);
}

Result<Tier> HostTier(int num_ranks, const std::vector<int>& cpus) {
  const Result<hardware::NumaHome> home = hardware::HomeOf(cpus);
  if (!home) return home.error();
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory(
      /*root=*/"", home->is_bound ? home->node : std::nullopt);
  if (!available) return available.error();
  return Tier{.numa_node = home->node,
              .spills = home->node && !home->is_bound,
              .budget_bytes = available->bytes / static_cast<uint64_t>(std::max(1, num_ranks)),
              .limited_by = available->limited_by};
}

Result<Tier> DeviceTier(int gpu, int num_ranks) {
  const Result<uint64_t> free_bytes = hardware::FreeGpuBytes(gpu);
  if (!free_bytes) return free_bytes.error();
  return Tier{.kind = TierKind::kDevice,
              .gpu = gpu,
              .budget_bytes = (*free_bytes - std::min(*free_bytes, kOfCuda)) /
                              static_cast<uint64_t>(std::max(1, num_ranks)),
              .limited_by = fmt::format("the free memory of GPU {}", gpu)};
}

uint64_t Amounts::total() const {
  return std::accumulate(by_use.begin(), by_use.end(), uint64_t{0});
}

std::string Amounts::Describe(uint64_t available_bytes) const {
  Amounts shown = *this;
  shown[Use::kWorking] += std::exchange(shown[Use::kProgram], 0);
  std::string parts;
  for (int i = 0; i < kNumUses; ++i) {
    const auto use = static_cast<Use>(i);
    if (use > Use::kWorking && shown[use] == 0) continue;
    parts += fmt::format("{}{} {}", i > 0 ? ", " : "", Name(use), FormatBytes(shown[use]));
  }
  return fmt::format("needed {} ({}), available {}", FormatBytes(total()), parts,
                     FormatBytes(available_bytes));
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  GiveBack();
  ledger_ = std::exchange(other.ledger_, nullptr);
  use_ = other.use_;
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  memory_ = std::move(other.memory_);
  gpu_memory_ = std::move(other.gpu_memory_);
  return *this;
}

void Reservation::GiveBack() {
  memory_ = {};  // free before it is given back
  gpu_memory_ = {};
  if (ledger_ == nullptr) return;
  const std::lock_guard lock(ledger_->mutex_);
  ledger_->reserved_[use_] -= size_bytes_;
}

Ledger::~Ledger() { CHECK(reserved_ == Amounts(), "still reserved: {}", Describe()); }

Result<Reservation> Ledger::Reserve(Use use, uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t available = tier_.budget_bytes - reserved_.total();
  if (size_bytes > available) {
    return ResourceExhausted(fmt::format("not enough {} for the {}: needed {}, available {} ({})",
                                         tier_.name(), Name(use), FormatBytes(size_bytes),
                                         FormatBytes(available), tier_.limited_by));
  }
  reserved_[use] += size_bytes;
  return Reservation(this, use, size_bytes);
}

Result<Reservation> Ledger::Allocate(Use use, uint64_t size_bytes) {
  Result<Reservation> reservation = Reserve(use, size_bytes);
  if (!reservation) return reservation;
  const std::string purpose = fmt::format("the {}", Name(use));
  if (tier_.kind == TierKind::kHost) {
    Result<hardware::HugeBuffer> memory = hardware::HugeBuffer::Allocate(size_bytes, purpose);
    if (!memory) return memory.error();
    reservation->memory_ = *std::move(memory);
    return reservation;
  }
  CHECK(tier_.kind != TierKind::kDisk);
  Result<hardware::GpuMemory> memory =
      tier_.kind == TierKind::kDevice
          ? hardware::GpuMemory::OnDevice(tier_.gpu, size_bytes, purpose)
          : hardware::GpuMemory::Pinned(tier_.gpu, size_bytes, purpose);
  if (!memory) return memory.error();
  reservation->gpu_memory_ = *std::move(memory);
  return reservation;
}

Amounts Ledger::reserved() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

}  // namespace convene::memory
