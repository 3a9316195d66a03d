#include "device/cuda.h"

#include <fmt/format.h>

namespace convene::device {

namespace {

Error WithoutCuda(int gpu) {
  return Unavailable(fmt::format(
      "GPU {} was asked for, but this build of convene has no CUDA; leave that out: the "
      "CPU is used where no device is asked for",
      gpu));
}

}  // namespace

Result<std::unique_ptr<Device>> MakeCudaDevice(int gpu) { return WithoutCuda(gpu); }
Result<DeviceBytes> CudaBytes(int gpu) { return WithoutCuda(gpu); }

}  // namespace convene::device
