#include "cost/memory_tiers.h"

#include <fmt/format.h>

namespace convene::cost {
namespace {

constexpr double kGiga = 1e9;

// Integer formats are computed in int8 where the machine has a rate of that.
double HostFlops(const hardware::Profile& host, std::string_view format) {
  const bool is_integer = format.starts_with("int");
  if (is_integer && host.int8_gops > 0) return host.int8_gops * kGiga;
  if (format != "f32" && host.bf16_gflops > 0) return host.bf16_gflops * kGiga;
  return host.f32_gflops * kGiga;
}

// Weights in int4 are expanded and computed in 16 bits on a device.
double DeviceFlops(const DeviceFigures& device, std::string_view format) {
  for (const std::string_view name : {format, std::string_view("bf16")}) {
    const auto found = device.flops.find(std::string(name));
    if (found != device.flops.end() && found->second > 0) return found->second;
  }
  return 0;
}

}  // namespace

Result<std::vector<MemoryTier>> TiersOf(const MachineProfile& machine, std::string_view format,
                                        double memory_bytes) {
  const hardware::Profile& host = machine.machine;
  std::vector<MemoryTier> tiers;
  if (machine.device) {
    const DeviceFigures& device = *machine.device;
    tiers.push_back({.name = device.name,
                     .flops = DeviceFlops(device, format),
                     .bytes_per_second = device.memory_bytes_per_second,
                     .bytes = static_cast<double>(device.memory_bytes)});
  }
  MemoryTier ram = {.name = "RAM", .bytes = static_cast<double>(machine.host_memory_bytes)};
  const double host_flops = HostFlops(host, format);
  if (host_flops > 0 && host.read_gbps > 0) {
    ram.flops = host_flops;
    ram.bytes_per_second = host.read_gbps * kGiga;
  }
  if (machine.device) ram.up_bytes_per_second = machine.device->host_bytes_per_second;
  if (!machine.device || ram.up_bytes_per_second > 0) tiers.push_back(ram);
  if (host.disk_gbps > 0) {
    tiers.push_back({.name = "disk", .flops = 0, .up_bytes_per_second = host.disk_gbps * kGiga});
  }
  const MemoryTier& fast = tiers.front();
  if (fast.flops.value_or(0) <= 0 || fast.bytes_per_second <= 0) {
    return Error{
        fmt::format("the profile does not say how fast {} computes and is read (one that was only "
                    "made for plans has costs of steps alone): measure it with convene measure",
                    fast.name)};
  }
  if (tiers.size() < 2) {
    return Error{
        fmt::format("{} is the only tier of memory of which a rate is known: give the disk's with "
                    "--disk-rate, or measure it with convene measure --disk DIR",
                    fast.name)};
  }
  if (memory_bytes > 0) tiers.front().bytes = memory_bytes;
  return tiers;
}

}  // namespace convene::cost
