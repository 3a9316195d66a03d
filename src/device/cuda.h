// NVIDIA GPUs as devices, without CUDA's headers. without_cuda/ stands in where CUDA was not found.
#pragma once

#include <memory>

#include "base/result.h"
#include "device/device.h"

namespace convene::device {

// The GPU with this number, of those that this process may use. Error: there is none.
Result<std::unique_ptr<Device>> MakeCudaDevice(int gpu);

// What it takes of its memory. Error: as MakeCudaDevice.
Result<DeviceBytes> CudaBytes(int gpu);

}  // namespace convene::device
