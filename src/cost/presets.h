// Machines that one does not own, as data sheets describe them: figures of GPUs, of hosts, and the
// links between ranks. The operators of a GPU are those of cost/preset_curves.h, of itself or of
// its nearest relative; whole tables are for cost/import_tables.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"

namespace convene::cost {

struct GpuPreset {
  std::string key;             // "a100", the first part of the names of presets
  std::string name_in_tables;  // a part of the device's name that tables write; no other's has it
  int architecture = 0;        // generations in order: Volta 0, Turing, Ampere, Ada, Hopper
  DeviceFigures figures = {};
  double nvlink_bytes_per_second = 0;  // in one direction; 0: the GPU has no NVLink
  int nvlink_ranks = 0;                // that it joins
};
const std::vector<GpuPreset>& GpuPresets();

// The GPU that tables call so ("NVIDIA A100-SXM4-80GB"), or whose key or name it is. Errors: none;
// the message lists what is known.
Result<GpuPreset> FindGpu(std::string_view name);

// How far apart two GPUs are when one has to stand for the other: generations, and by how much the
// FLOPs that they compute per byte of memory differ.
double Distance(const GpuPreset& a, const GpuPreset& b);

// "a100-nvlink", "a6000-pcie4", "epyc-7763": a GPU with what joins those of a host, or a host.
// Hosts with GPUs are joined by 200 or 400 gigabit networks: name + "-400g" or "-200g" says which,
// and without it the preset takes the one that its generation is sold with. "findep-a" to
// "findep-d" are testbeds of a paper, at the clocks that it prints.
std::vector<std::string> PresetNames();

// "; did you mean NAME?" to follow the message that there is no such preset, whatever its case, or
// those whose names begin so; or nothing, if no name is close.
std::string MeantPresets(std::string_view name);

// Errors: there is no such preset; the message says which was meant.
Result<MachineProfile> Preset(std::string_view name);

}  // namespace convene::cost
