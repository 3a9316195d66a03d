// All that is known of a machine, in one form, whether it was measured here, imported from tables
// or taken from data sheets: the figures of its host and its device, what operators cost on it, and
// the links that join its ranks. It neither measures nor reads files.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/operator_model.h"
#include "cost/step_costs.h"
#include "hardware/profile.h"

namespace convene::cost {

// A GPU, or whatever computes beside the host's cores. 0: not known.
struct DeviceFigures {
  std::string name;
  std::map<std::string, double> flops = {};  // per second, dense, by format: "bf16", "fp8", "int8"
  double memory_bytes_per_second = 0;
  uint64_t memory_bytes = 0;
  int num_multiprocessors = 0;
  double host_bytes_per_second = 0;  // from its host's memory, in one direction
  std::string source = {};           // the data sheet, or who measured
  std::string assumptions = {};      // what of it no source says; empty: nothing

  bool operator==(const DeviceFigures&) const = default;
};

// What convene measure found of a GPU.
DeviceFigures FiguresOf(const hardware::GpuProfile& gpu);

// Another machine on which an operator was measured: whose limits its ideal seconds are.
struct OtherMachine {
  DeviceFigures device;
  double link_bytes_per_second = 0;  // that joins its ranks

  bool operator==(const OtherMachine&) const = default;
};

// Who shares the rate of a link.
enum class LinkSharing {
  kNobody,  // each rank sends at the rate and receives at it, both at once
  kHost,    // what all ranks of a host send over this level takes turns, and so what they receive
  kMedium,  // all transfers of the level take turns
};
std::string_view NameOf(LinkSharing sharing);  // "nobody", "host", "medium"

// Links that join ranks at one level: those of a host, hosts, racks.
struct LinkLevel {
  std::string name;             // "NVLink", "PCIe 4.0 x16", "InfiniBand HDR"
  int num_ranks = 0;            // joined by it, neighbours by number; 0: all there are
  double bytes_per_second = 0;  // in one direction
  double latency_seconds = 0;   // of a message or the step of a collective
  LinkSharing shared_by = LinkSharing::kNobody;
  std::string source = {};
  std::string assumptions = {};

  bool operator==(const LinkLevel&) const = default;
};

struct MachineProfile {
  hardware::Profile machine = {};  // the host
  // Of a host that is not here. Memory of 0 is not known; texts are as those of DeviceFigures.
  uint64_t host_memory_bytes = 0;
  std::string host_source = {};
  std::string host_assumptions = {};
  std::optional<DeviceFigures> device = {};
  // By name; a model's spec.source says where its points are from, and if they are another
  // machine's, that they are.
  std::map<std::string, OperatorModel> operators = {};
  // Of operators whose ideal seconds are those of another machine: which one. This machine is
  // expected to reach the same share of its own limits (cost/operator_costs.h).
  std::map<std::string, OtherMachine> measured_on = {};
  std::vector<LinkLevel> links = {};  // from within a host outwards
  // What tasks of steps cost here, by ranks, threads and format; none twice.
  std::vector<StepCosts> steps = {};

  // Null: not measured.
  const StepCosts* CostsOf(int num_ranks, int num_threads, std::string_view weights) const;
  StepCosts* CostsOf(int num_ranks, int num_threads, std::string_view weights);
};

// Of its host's disk.
DiskCost DiskOf(const hardware::Profile& machine);

// One object, with "version": 1; "machine" as hardware::ToJson writes it.
nlohmann::ordered_json ToJson(const MachineProfile& profile);

// Errors: another version, a part that is missing or does not fit, at most 256 operators, 16
// formats, 16 links and 256 costs of steps. Unknown keys are ignored.
Result<MachineProfile> MachineProfileFromJson(const nlohmann::json& object);

}  // namespace convene::cost
