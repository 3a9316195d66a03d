// Measures what `convene measure` keeps and `convene bench` compares with: dot products, memory and
// disk of this machine. The single measurements are those of kernels/ and hardware/.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/result.h"
#include "hardware/isa.h"
#include "hardware/measure_disk.h"
#include "hardware/profile.h"
#include "hardware/thread_pool.h"
#include "hardware/topology.h"
#include "kernels/kernel_set.h"

namespace convene::evaluate {

struct MeasureOptions {
  double budget_s = 1;  // for each of the rates
  std::string disk_directory;
  // The directory was asked for: it must exist, and its disk be measurable. Otherwise it is
  // created, and a disk that cannot be measured has the rate 0, with a note.
  bool disk_is_required = false;

  // To measure the rates of memory and of the disk with, one after the other.
  uint64_t most_memory_bytes = std::numeric_limits<uint64_t>::max();
  // Whose order of experts, form of latent attention and way of reading panels are measured; null:
  // they are not.
  const kernels::KernelSet* choices_of = nullptr;
};

// What is known of it without a measurement: all rates are 0.
hardware::Profile DescribeMachine(const hardware::Topology& topology,
                                  const hardware::ThreadPool& pool, hardware::Isa isa);

// What was measured of the disk that `directory` is on.
void SetDisk(const hardware::DiskRate& disk, const std::string& directory,
             hardware::Profile& profile);

// All threads of `pool` with the instructions of `isa`. Rates are the medians of many passes.
// Errors: no memory to measure with, a disk that is required and cannot be measured.
Result<hardware::Profile> MeasureMachine(const hardware::Topology& topology,
                                         hardware::ThreadPool& pool, hardware::Isa isa,
                                         const MeasureOptions& options);

// Its GPUs, with the threads of `pool`; those that cannot be measured are left out, with a note.
std::vector<hardware::GpuProfile> MeasureGpus(hardware::ThreadPool& pool, double budget_s);

}  // namespace convene::evaluate
