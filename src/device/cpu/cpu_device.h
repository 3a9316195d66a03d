// A set of CPU cores as a device: the one header of device/cpu/ that others include.
#pragma once

#include <memory>

#include "device/device.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"

namespace convene::device {

// Keeps references to both.
std::unique_ptr<Device> MakeCpuDevice(const kernels::KernelSet& kernels,
                                      hardware::ThreadPool& pool);

DeviceBytes CpuBytes();

}  // namespace convene::device
