// Who has how much of a tier of memory: whatever is large is reserved here before it is allocated,
// so that what a rank takes is known, by use, and stays within its budget. It knows no model.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "hardware/gpu_memory.h"
#include "hardware/huge_buffer.h"

namespace convene::memory {

enum class TierKind : uint8_t { kHost, kPinned, kDevice, kDisk };

struct Tier {
  TierKind kind = TierKind::kHost;
  // On which it lies; unset: pages are interleaved, or lie where they are first written, or the
  // machine has one node alone.
  std::optional<int> numa_node = {};
  // Pages go to other nodes once that one is full, since nobody has bound memory to it. Then what
  // is free there limits nothing: a budget of it would refuse what the machine has.
  bool spills = false;
  int gpu = 0;  // whose memory it is, or which copies from and to it
  uint64_t budget_bytes = std::numeric_limits<uint64_t>::max();  // that a rank may have
  std::string limited_by = "nothing";  // what sets that, as in hardware::AvailableMemory
  // Of a budget that was given, what the program had taken of it before; 0: none was given, or
  // something else leaves less.
  uint64_t taken_bytes = 0;

  std::string name()
      const;  // "memory", "device memory of NUMA node 1", "memory (NUMA node 1 first)"
};

// What this process can still have, divided evenly among the `num_ranks` ranks of this host, whose
// threads run on `cpus` in this one. Whoever has bound memory to a node has bound that of all ranks
// of the host, as CpusForRank (hardware/topology.h) expects of an affinity mask.
Result<Tier> HostTier(int num_ranks, const std::vector<int>& cpus);

// What is free of the memory of this GPU now, but for what CUDA itself may take while steps run,
// divided evenly among the `num_ranks` ranks that compute on it. Errors: hardware::FreeGpuBytes.
Result<Tier> DeviceTier(int gpu, int num_ranks);

enum class Use : uint8_t {
  kWeights,
  kKvCache,
  kWorking,   // of steps: frames and workspaces
  kExchange,  // what travels between ranks
  kStaging,   // for a while: what is edited or measured
  kProgram,   // what is small by itself: code, stacks, tokenizer, heap
};
inline constexpr int kNumUses = 6;

// Bytes by use.
struct Amounts {
  std::array<uint64_t, kNumUses> by_use = {};

  uint64_t& operator[](Use use) { return by_use[static_cast<size_t>(use)]; }
  uint64_t operator[](Use use) const { return by_use[static_cast<size_t>(use)]; }
  uint64_t total() const;
  bool operator==(const Amounts&) const = default;

  // "needed 14.1 GiB (weights 12.9 GiB, KV cache 1.00 GiB, working memory 0.2 GiB), available 20
  // GiB". The program is part of the working memory; exchanges and staging stand there if not 0.
  std::string Describe(uint64_t available_bytes) const;
};

// Bytes of a tier that are somebody's, and the memory itself if it was allocated. Given back when
// it is destroyed.
class Reservation {
 public:
  Reservation() = default;  // of nothing
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { GiveBack(); }

  uint64_t size_bytes() const { return size_bytes_; }
  // Empty where nothing was allocated.
  std::span<std::byte> bytes() const {
    return gpu_memory_.size_bytes() > 0 ? gpu_memory_.bytes() : memory_.bytes();
  }
  std::byte* data() const { return bytes().data(); }

 private:
  friend class Ledger;
  Reservation(class Ledger* ledger, Use use, uint64_t size_bytes)
      : ledger_(ledger), use_(use), size_bytes_(size_bytes) {}
  void GiveBack();

  class Ledger* ledger_ = nullptr;
  Use use_ = Use::kProgram;
  uint64_t size_bytes_ = 0;
  // One of both, by the tier's kind.
  hardware::HugeBuffer memory_;
  hardware::GpuMemory gpu_memory_;
};

// One for each tier of a rank. Any thread may call it; it outlives its reservations (CHECKed).
class Ledger {
 public:
  Ledger() = default;  // without a limit
  explicit Ledger(Tier tier) : tier_(std::move(tier)) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

  // Error: ResourceExhausted, with the use, what it needs, what there is and what limits that.
  Result<Reservation> Reserve(Use use, uint64_t size_bytes);
  // And allocates it where the tier is (hardware/huge_buffer.h, gpu_memory.h): the host cannot read
  // the bytes of a device. Not of a disk (CHECKed). Errors: as Reserve and of these.
  Result<Reservation> Allocate(Use use, uint64_t size_bytes);

  const Tier& tier() const { return tier_; }
  Amounts reserved() const;
  uint64_t available_bytes() const { return tier_.budget_bytes - reserved().total(); }
  // What is reserved, held against the budget.
  std::string Describe() const { return reserved().Describe(tier_.budget_bytes); }

 private:
  friend class Reservation;
  Tier tier_;
  mutable std::mutex mutex_;
  Amounts reserved_;  // guarded by mutex_
};

}  // namespace convene::memory
