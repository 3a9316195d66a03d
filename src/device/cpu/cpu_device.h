// A set of CPU cores as a device: the one header of device/cpu/ that others include.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"

namespace convene::device {

// Keeps references to both.
std::unique_ptr<Device> MakeCpuDevice(const kernels::KernelSet& kernels,
                                      hardware::ThreadPool& pool);

// For the memory plan, before there is a device: bytes of a KV block over all layers, and what
// steps work in with so many threads.
uint64_t CpuKvBlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);
memory::Amounts CpuStepBytes(const model::ModelSpec& spec, kernels::ActivationFormat activations,
                             const StepShape& shape, int num_threads);

}  // namespace convene::device
