// The NVIDIA GPUs of this machine, without CUDA's headers: cuda/ asks the driver, without_cuda/
// stands in where CUDA was not found when convene was built. It measures nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace convene::hardware {

struct Gpu {
  int index = 0;  // among those that this process may use
  std::string name;
  uint64_t memory_bytes = 0;
  int num_multiprocessors = 0;
  int compute_major = 0;  // compute capability: 9.0 of H100 and H200
  int compute_minor = 0;
  double clock_mhz = 0;  // the highest; 0: not told
  uint64_t l2_bytes = 0;
  int driver_version = 0;     // the newest CUDA that the driver knows: 1000 * major + 10 * minor
  int runtime_version = 0;    // the CUDA of this build, in the same form
  std::string pci_link = {};  // "32.0 GT/s PCIe x16"; empty: not told
  std::optional<int> numa_node = {};  // to which it is joined
};

// Whether this build has kernels at all.
bool IsBuiltWithCuda();

// Those that this process may use; none where there is no GPU, no driver, or no CUDA in this build.
// Takes no memory of them. Error: Unavailable, the driver does not work, or is older than this
// build's CUDA; the message says what to change.
Result<std::vector<Gpu>> FindGpus();

// Ok if this build's kernels run on it. Error: why they do not.
Status CanCompute(const Gpu& gpu);

// What is free of the memory of the GPU with this number. Takes some of it, for the process's
// context, if nobody did before: a few hundred MiB, and a fraction of a second. Errors: as
// FindGpus, no such GPU.
Result<uint64_t> FreeGpuBytes(int gpu);

}  // namespace convene::hardware
