// NVIDIA GPUs as devices, without CUDA's headers. without_cuda/ stands in where CUDA was not found.
#pragma once

#include <memory>

#include "base/result.h"
#include "device/device.h"
#include "hardware/thread_pool.h"

namespace convene::device {

// The GPU with this number, of those that this process may use; `pool` (or null) are threads of the
// host beside it. Error: there is none.
Result<std::unique_ptr<Device>> MakeCudaDevice(int gpu, hardware::ThreadPool* pool);

// What it takes of its memory. Error: as MakeCudaDevice.
Result<DeviceBytes> CudaBytes(int gpu);

}  // namespace convene::device
