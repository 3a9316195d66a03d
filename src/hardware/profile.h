// What was measured of this machine, as kept between runs. It measures nothing itself, and where
// the machine drifts a measurement beside the figure in question counts for more.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hardware/cpu_identity.h"

namespace convene::hardware {

// Of a GPU, measured by itself. Giga is 10^9; 0 was not measured, or is not known.
struct GpuProfile {
  int index = 0;  // as in Gpu (hardware/gpu.h)
  std::string name;
  uint64_t memory_bytes = 0;
  int num_multiprocessors = 0;
  uint64_t l2_bytes = 0;
  std::string pci_link = {};    // as there
  double to_device_gbps = 0;    // from pinned memory of the host
  double from_device_gbps = 0;  // into it
  double both_ways_gbps = 0;    // both together, when both are under way
  double pageable_to_device_gbps = 0;
  double pageable_from_device_gbps = 0;
  double staging_gbps = 0;  // from pageable to pinned memory, by the threads of the profile
  double read_gbps = 0;     // of its own memory
  double copy_gbps = 0;     // within it: what is read and what is written
  double bf16_gflops = 0;   // of matrix products with float32 sums
  double f32_gflops = 0;    // of multiply-adds
  double launch_us = 0;     // for each of many kernels that do nothing
  double launch_and_wait_us = 0;
  double small_copy_us = 0;   // 4 KiB from pinned memory, and waiting for it
  double small_fetch_us = 0;  // into it

  bool operator==(const GpuProfile&) const = default;
};

// Rates are those of all CPUs in `cpus` together; giga is 10^9. A rate of 0 was not measured.
struct Profile {
  // As in CpuIdentity. Profiles of before have the name alone, so nobody knows which CPU they are
  // of.
  std::string cpu_name;
  std::string cpuid = {};
  std::vector<uint64_t> cache_bytes = {};
  std::vector<int> cpus;  // logical numbers, one thread each
  std::string isa;        // name of the instruction set that the dot products used
  double f32_gflops = 0;
  double bf16_gflops = 0;
  double int8_gops = 0;
  double read_gbps = 0;
  double disk_gbps = 0;
  // Reading it beside computation: its rate, and the core seconds that 10^9 bytes take from it.
  double disk_gbps_beside = 0;
  double disk_core_seconds_per_gb = 0;
  std::string disk_directory;  // where the disk was measured
  bool disk_direct = false;    // past the page cache
  uint64_t last_level_cache_bytes = 0;
  int num_numa_nodes = 1;
  int num_interleaved_nodes = 1;  // over which the system lets weights be interleaved
  // Rows per expert from which on experts are computed one after the other; 0: never.
  int dense_from_rows = 0;
  // Tokens of a prompt from which on latent attention expands keys and values; 0: never.
  int expand_from_tokens = 0;
  // How panels of weights are best read, by format and rows, as kernels::StreamingChoice numbers
  // it; empty: not measured.
  std::vector<int> panel_streaming;
  double huge_page_share = 0;  // of the memory that read_gbps was measured on
  std::string date;            // UTC, "2025-01-31T12:00:00Z"
  std::vector<GpuProfile> gpus = {};

  CpuIdentity cpu() const { return {.name = cpu_name, .cpuid = cpuid, .cache_bytes = cache_bytes}; }
  void SetCpu(const CpuIdentity& cpu);

  bool operator==(const Profile&) const = default;
};

// One object, keys as the members, with "version": 4; "gpus" only where there are some.
nlohmann::json ToJson(const Profile& profile);

// What older profiles have not stays as in a new Profile: the kind of CPU, and the rates of reading
// beside computation.
// Errors: another version, a key that is missing or of the wrong kind, a rate that is negative or
// not finite, more than 64 GPUs. Unknown keys are ignored, and "gpus" need not be there.
Result<Profile> ProfileFromJson(const nlohmann::json& object);

// <CacheDirectory()>/profile.json
std::string ProfilePath();

// Of what ToJson gave, or of an object with that in it. Writes the file whole or not at all, and
// makes its directory.
Status SaveProfileJson(const nlohmann::json& profile, const std::string& path);

// Also of a file whose member "machine" is the profile (cost/machine_profile.h).
// Errors: no such file, not a profile; the message names the file and the command to run.
Result<Profile> LoadProfile(const std::string& path);

// Now, in UTC, as in Profile::date.
std::string CurrentDate();

}  // namespace convene::hardware
