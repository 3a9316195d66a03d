// A device whose operators take several times as long: each is computed by the device that it
// stands for, with that one's real kernels, and then waits without using a core. So a machine with
// few cores carries the ranks of several machines, each as fast as any other, whatever runs beside
// it. For benchmarks alone.
#pragma once

#include <memory>

#include "device/device.h"

namespace convene::bench {

// An operator takes `factor` (at least 1) times the processor time that the calling thread spends
// in it, so a rank must have one thread. What exchanges cost is unchanged.
std::unique_ptr<device::Device> MakeSlowedDevice(std::unique_ptr<device::Device> device,
                                                 double factor);

}  // namespace convene::bench
