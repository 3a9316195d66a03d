#include "device/cuda.h"

#include <fmt/format.h>

namespace convene::device {

Result<std::unique_ptr<Device>> MakeCudaDevice(int gpu, hardware::ThreadPool*) {
  return Unavailable(fmt::format(
      "GPU {} was asked for, but this build of convene has no CUDA; leave that out: the "
      "CPU is used where no device is asked for",
      gpu));
}

Result<DeviceBytes> CudaBytes(int gpu) { return MakeCudaDevice(gpu, nullptr).error(); }

}  // namespace convene::device
