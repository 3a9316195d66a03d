#include "cost/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "base/closest_name.h"
#include "base/json.h"
#include "base/quote.h"
#include "cost/import_tables.h"
#include "cost/preset_curves.h"

namespace convene::cost {
namespace {

constexpr double kTera = 1e12;
constexpr double kGigaOfPresets = 1e9;
constexpr uint64_t kGib = uint64_t{1} << 30;
constexpr int kHostGpus = 8;
// No data sheet gives latencies: these are of the order that collectives show.
constexpr double kLinkLatency = 10e-6;
constexpr double kNetworkLatency = 20e-6;

// Dense rates of tensor cores. Data sheets of Ampere and later also print those with structured
// sparsity, which are twice these.
struct GpuRow {
  const char* key;
  const char* name;
  const char* name_in_tables;
  int architecture;
  double bf16_tflops;
  double fp8_tflops;  // 0: it has none, as is the next
  double int8_tops;
  double memory_gbps;
  uint64_t memory_gib;
  int multiprocessors;
  double nvlink_gbps;  // in one direction: half of what data sheets print
  int nvlink_ranks;
  const char* source;
  const char* assumptions;
};
constexpr const char* kNoBf16 =
    "it has no bf16: the rate is that of fp16, in which 16-bit products run on it";
constexpr GpuRow kGpus[] = {
    {"v100", "NVIDIA V100 SXM2 32GB", "V100", 0, 125, 0, 0, 900, 32, 80, 150, 8,
     "NVIDIA V100 Tensor Core GPU data sheet, SXM2", kNoBf16},
    {"v100-pcie", "NVIDIA V100 PCIe 32GB", "V100-PCIE", 0, 112, 0, 0, 900, 32, 80, 0, 0,
     "NVIDIA V100 Tensor Core GPU data sheet, PCIe", kNoBf16},
    {"t4", "NVIDIA T4", "T4", 1, 65, 0, 130, 300, 16, 40, 0, 0,
     "NVIDIA T4 Tensor Core GPU data sheet", kNoBf16},
    {"a100", "NVIDIA A100 SXM4 80GB", "A100", 2, 312, 0, 624, 2039, 80, 108, 300, 8,
     "NVIDIA A100 Tensor Core GPU data sheet, 80GB SXM", ""},
    {"a100-pcie", "NVIDIA A100 PCIe 80GB", "A100-PCIE", 2, 312, 0, 624, 1935, 80, 108, 0, 0,
     "NVIDIA A100 Tensor Core GPU data sheet, 80GB PCIe", "used without the bridge of NVLink"},
    {"a6000", "NVIDIA RTX A6000", "A6000", 2, 154.8, 0, 309.7, 768, 48, 84, 56.25, 2,
     "NVIDIA RTX A6000 data sheet",
     "dense rates are half of the 309.7 TFLOPS that the sheet prints with sparsity"},
    {"a10", "NVIDIA A10", "A10", 2, 125, 0, 250, 600, 24, 72, 0, 0,
     "NVIDIA A10 Tensor Core GPU data sheet", ""},
    {"l4", "NVIDIA L4", "L4", 3, 121, 242.5, 242.5, 300, 24, 58, 0, 0,
     "NVIDIA L4 Tensor Core GPU data sheet",
     "dense rates are half of those that the sheet prints with sparsity"},
    {"l40s", "NVIDIA L40S", "L40S", 3, 362.05, 733, 733, 864, 48, 142, 0, 0,
     "NVIDIA L40S data sheet", ""},
    {"h100", "NVIDIA H100 SXM5 80GB", "H100", 4, 989, 1979, 1979, 3350, 80, 132, 450, 8,
     "NVIDIA H100 Tensor Core GPU data sheet, SXM",
     "dense rates are half of those that the sheet prints with sparsity"},
    {"h100-pcie", "NVIDIA H100 PCIe 80GB", "H100 PCIe", 4, 756, 1513, 1513, 2000, 80, 114, 0, 0,
     "NVIDIA H100 Tensor Core GPU data sheet, PCIe",
     "dense rates are half of those that the sheet prints with sparsity; used without the bridge "
     "of NVLink"},
    {"h800", "NVIDIA H800 SXM5 80GB", "H800", 4, 989, 1979, 1979, 3350, 80, 132, 200, 8,
     "NVIDIA H100 Tensor Core GPU data sheet, SXM",
     "no public data sheet: as H100, with 400 GB/s of NVLink in both directions together, as is "
     "commonly reported"},
    {"h20", "NVIDIA H20 96GB", "H20", 4, 148, 296, 296, 4000, 96, 78, 450, 8,
     "commonly reported figures", "no public data sheet: all figures are as commonly reported"},
    {"h200", "NVIDIA H200 SXM 141GB", "H200", 4, 989, 1979, 1979, 4800, 141, 132, 450, 8,
     "NVIDIA H200 Tensor Core GPU data sheet, SXM",
     "dense rates are half of those that the sheet prints with sparsity; its number of "
     "multiprocessors is that of H100"},
};

// What joins the GPUs of a host. Data sheets print both directions of PCI Express together.
struct HostLinkRow {
  const char* key;
  const char* name;
  double gbps;
};
constexpr HostLinkRow kPcie[] = {{"pcie3", "PCI Express 3.0 x16", 16},
                                 {"pcie4", "PCI Express 4.0 x16", 32},
                                 {"pcie5", "PCI Express 5.0 x16", 64}};
// By generation of GPUs: what joins them to their host.
constexpr const char* kPcieOf[] = {"pcie3", "pcie3", "pcie4", "pcie4", "pcie5"};

struct GpuMachineRow {
  const char* name;
  const char* gpu;
  const char* link;   // "nvlink", or a key of kPcie
  int network_gbits;  // that such hosts are sold with
};
constexpr GpuMachineRow kGpuMachines[] = {
    {"v100-nvlink", "v100", "nvlink", 200},    {"v100-pcie3", "v100-pcie", "pcie3", 200},
    {"t4-pcie3", "t4", "pcie3", 200},          {"a100-nvlink", "a100", "nvlink", 200},
    {"a100-pcie4", "a100-pcie", "pcie4", 200}, {"a6000-nvlink", "a6000", "nvlink", 200},
    {"a6000-pcie4", "a6000", "pcie4", 200},    {"a10-pcie4", "a10", "pcie4", 200},
    {"l4-pcie4", "l4", "pcie4", 200},          {"l40s-pcie4", "l40s", "pcie4", 200},
    {"h100-nvlink", "h100", "nvlink", 400},    {"h100-pcie5", "h100-pcie", "pcie5", 400},
    {"h800-nvlink", "h800", "nvlink", 400},    {"h20-nvlink", "h20", "nvlink", 400},
    {"h200-nvlink", "h200", "nvlink", 400},
};
constexpr int kNetworks[] = {200, 400};

// Machines that a paper measures on: one of those above, with the clock that the paper prints.
struct TestbedRow {
  const char* name;
  const char* machine;
  double clock_ghz;
  double sheet_ghz;  // boost clock, with which the data sheet's rates are counted
  const char* assumptions;
};
constexpr const char* kFindepSource = "FinDEP (arXiv 2512.21487): Table 2, and ";
constexpr TestbedRow kTestbeds[] = {
    {"findep-a", "a6000-nvlink", 1.46, 1.80,
     "8 in a host, NVLink in pairs and PCI Express 4.0 x16 between them"},
    {"findep-b", "a10-pcie4", 1.41, 1.695, "8 in a host, PCI Express 4.0 x16"},
    {"findep-c", "h20-nvlink", 1.98, 1.98, "8 in a host, NVLink"},
    {"findep-d", "h20-nvlink", 1.98, 1.98,
     "4 hosts of 8, NVLink within each; the text does not name what joins hosts: a port of 400 "
     "Gbit/s for each GPU"},
};

// A GPU together with its host, as a paper gives the figures of both: what models larger than the
// GPU's memory are planned with.
struct HostedGpuRow {
  const char* name;
  const char* gpu;
  double tflops;  // of the GPU, as are the next two
  double memory_gbps;
  uint64_t memory_gib;
  double link_gbps;  // from host to GPU
  const char* host_name;
  int host_cores;
  double host_tflops;
  double host_memory_gbps;
  uint64_t host_memory_gib;
  const char* source;
  const char* assumptions;
};
constexpr HostedGpuRow kHostedGpus[] = {
    {"t4-gcp", "t4", 65, 300, 15, 16, "Intel Xeon 2.30 GHz (Google Cloud N1)", 24, 0.8, 100, 192,
     "MoE-Lightning (arXiv 2411.11217): Table 2, and constants of its public code, "
     "fastmoe/backend/utils.py",
     "memory of 100 GB/s: the text has none, and the code takes 76 to 100 as an option"},
    {"l4-gcp", "l4", 242, 300, 24, 16, "Intel Xeon 2.20 GHz (Google Cloud G2)", 24, 1.3, 100, 192,
     "MoE-Lightning (arXiv 2411.11217): Table 2, and constants of Figs. 4 and 5, from its public "
     "code, plots/roofline",
     "242 TFLOP/s is the rate with structured sparsity, which dense products do not reach (121)"},
};

struct HostRow {
  const char* key;
  const char* name;
  const char* isa;
  int cores;
  double base_ghz;
  double f32_flops_per_cycle;  // of a core
  double bf16_flops_per_cycle;
  double int8_ops_per_cycle;
  int memory_channels;
  int megatransfers;  // per second and channel, of 8 bytes each
  uint64_t last_level_cache_mib;
  const char* source;
  const char* units;  // what rates per cycle are counted from
};
// One socket: its data sheet's cores, base clock and memory channels, times what its vector and
// matrix units do in a cycle.
constexpr HostRow kHosts[] = {
    {"epyc-7763", "AMD EPYC 7763", "avx2", 64, 2.45, 32, 0, 51.2, 8, 3200, 256,
     "AMD EPYC 7003 Series Processors data sheet, EPYC 7763",
     "2 FMA units of 256 bits, and of bytes, without VNNI, 1.6 pairs of VPMADDWD and VPADDD in a "
     "cycle, as on a Zen 3 that was measured (docs/results/few_rows.md)"},
    {"epyc-9654", "AMD EPYC 9654", "avx512_bf16", 96, 2.4, 32, 64, 128, 12, 4800, 384,
     "AMD EPYC 9004 Series Processors data sheet, EPYC 9654",
     "2 FMA units of 256 bits, with VDPBF16PS and VPDPBUSD on them"},
    {"xeon-8480", "Intel Xeon Platinum 8480+", "amx", 56, 2.0, 64, 1024, 2048, 8, 4800, 105,
     "Intel product specifications, Xeon Platinum 8480+",
     "2 FMA units of 512 bits, and AMX: a product of tiles in 16 cycles"},
    {"xeon-8380", "Intel Xeon Platinum 8380", "avx512_vnni", 40, 2.3, 64, 0, 256, 8, 3200, 60,
     "Intel product specifications, Xeon Platinum 8380",
     "2 FMA units of 512 bits, with VPDPBUSD on them"},
};
// Data sheets give the most that a socket takes, which few machines have.
constexpr uint64_t kDimmGib = 64;

const HostLinkRow* FindPcie(std::string_view key) {
  const auto found = std::find_if(std::begin(kPcie), std::end(kPcie),
                                  [&](const HostLinkRow& row) { return row.key == key; });
  return found == std::end(kPcie) ? nullptr : found;
}

GpuPreset FromRow(const GpuRow& row) {
  GpuPreset gpu = {.key = row.key,
                   .name_in_tables = row.name_in_tables,
                   .architecture = row.architecture,
                   .nvlink_bytes_per_second = row.nvlink_gbps * kGigaOfPresets,
                   .nvlink_ranks = row.nvlink_ranks};
  DeviceFigures& figures = gpu.figures;
  figures.name = row.name;
  figures.flops["bf16"] = row.bf16_tflops * kTera;
  figures.flops["fp16"] = row.bf16_tflops * kTera;
  if (row.fp8_tflops > 0) figures.flops["fp8"] = row.fp8_tflops * kTera;
  if (row.int8_tops > 0) figures.flops["int8"] = row.int8_tops * kTera;
  figures.memory_bytes_per_second = row.memory_gbps * kGigaOfPresets;
  figures.memory_bytes = row.memory_gib * kGib;
  figures.num_multiprocessors = row.multiprocessors;
  figures.host_bytes_per_second = FindPcie(kPcieOf[row.architecture])->gbps * kGigaOfPresets;
  figures.source = row.source;
  figures.assumptions = row.assumptions;
  return gpu;
}

// What joins ranks within a host of 8 GPUs: NVLink alone, or pairs of it beside PCI Express.
std::vector<LinkLevel> LinksWithinHost(const GpuPreset& gpu, std::string_view link) {
  const bool has_nvlink = link == "nvlink";
  std::vector<LinkLevel> links;
  if (has_nvlink) {
    links.push_back(
        {.name = "NVLink",
         .num_ranks = gpu.nvlink_ranks,
         .bytes_per_second = gpu.nvlink_bytes_per_second,
         .latency_seconds = kLinkLatency,
         .shared_by = LinkSharing::kNobody,
         .source = gpu.figures.source,
         .assumptions = gpu.nvlink_ranks >= kHostGpus
                            ? "the latency; ranks of a host all see each other"
                            : "the latency; neighbours by number have a link, all others of a "
                              "host reach each other over PCI Express"});
    if (gpu.nvlink_ranks >= kHostGpus) return links;
  }
  const HostLinkRow& pcie = *FindPcie(has_nvlink ? "pcie4" : link);
  links.push_back({.name = pcie.name,
                   .num_ranks = kHostGpus,
                   .bytes_per_second = pcie.gbps * kGigaOfPresets,
                   .latency_seconds = kLinkLatency,
                   .shared_by = LinkSharing::kNobody,
                   .source = "PCI Express Base Specification, rate of 16 lanes before encoding",
                   .assumptions =
                       "the latency; 8 GPUs in a host, each with 16 lanes of its own and "
                       "no switch that several share"});
  return links;
}

LinkLevel Network(int gbits, bool per_gpu) {
  return {.name = fmt::format("{} Gbit/s network", gbits),
          .num_ranks = 0,
          .bytes_per_second = gbits / 8.0 * kGigaOfPresets,
          .latency_seconds = kNetworkLatency,
          .shared_by = per_gpu ? LinkSharing::kNobody : LinkSharing::kHost,
          .source = "rate of one port",
          .assumptions = per_gpu ? "the latency; one port for each GPU, and no contention between "
                                   "switches"
                                 : "the latency; one port for each host, and no contention "
                                   "between switches"};
}

MachineProfile FromHost(const HostRow& row) {
  MachineProfile profile;
  hardware::Profile& machine = profile.machine;
  const double giga_cycles = row.cores * row.base_ghz;
  machine.cpu_name = row.name;
  machine.cpus.resize(row.cores);
  std::iota(machine.cpus.begin(), machine.cpus.end(), 0);
  machine.isa = row.isa;
  machine.f32_gflops = giga_cycles * row.f32_flops_per_cycle;
  machine.bf16_gflops = giga_cycles * row.bf16_flops_per_cycle;
  machine.int8_gops = giga_cycles * row.int8_ops_per_cycle;
  machine.read_gbps = row.memory_channels * row.megatransfers * 8 / 1e3;
  machine.last_level_cache_bytes = row.last_level_cache_mib << 20;
  profile.host_memory_bytes = static_cast<uint64_t>(row.memory_channels) * kDimmGib * kGib;
  profile.host_source = row.source;
  profile.host_assumptions = fmt::format(
      "one socket; all {} memory channels with one DIMM of {} GB each, and read at their full {} "
      "MT/s; in each core {}, busy in every cycle of the base clock of {} GHz",
      row.memory_channels, kDimmGib, row.megatransfers, row.units, row.base_ghz);
  profile.links = {Network(200, false)};
  return profile;
}

// The curves of the nearest GPU that has some of products and collectives; of dispatch and combine,
// which others have a table of, each of the nearest that has it. A GPU's own is the nearest.
Status AddOperators(const GpuPreset& gpu, MachineProfile& profile) {
  struct Curve {
    GpuPreset measured;
    OperatorModel model;
  };
  std::vector<Curve> curves;
  std::map<std::string, GpuPreset> nearest;  // by dispatch, combine, and all others together
  const auto group_of = [](const std::string& name) {
    return name == "dispatch" || name == "combine" ? name : "others";
  };
  for (const PresetCurve& curve : PresetCurves()) {
    const Result<GpuPreset> measured = FindGpu(curve.gpu);
    if (!measured) return measured.error();
    const Result<nlohmann::json> parsed = ParseJson(curve.json);
    if (!parsed) return parsed.error();
    Result<OperatorModel> model = OperatorModelFromJson(*parsed);
    if (!model) return model.error();
    const auto [known, is_new] = nearest.try_emplace(group_of(model->spec.name), *measured);
    if (!is_new && Distance(gpu, *measured) < Distance(gpu, known->second)) {
      known->second = *measured;
    }
    curves.push_back({*measured, *std::move(model)});
  }
  for (Curve& curve : curves) {
    const std::string name = curve.model.spec.name;
    if (curve.measured.key != nearest.at(group_of(name)).key) continue;
    if (!WhyNoKernels(name, gpu, profile.links).empty()) continue;
    profile.operators.emplace(name, std::move(curve.model));
    if (curve.measured.key == gpu.key) continue;
    profile.measured_on[name] = {curve.measured.figures, curve.measured.nvlink_bytes_per_second};
  }
  return {};
}

Result<MachineProfile> FromHostedGpu(const HostedGpuRow& row) {
  const Result<GpuPreset> gpu = FindGpu(row.gpu);
  if (!gpu) return gpu.error();
  MachineProfile profile;
  DeviceFigures figures = gpu->figures;
  figures.flops["bf16"] = row.tflops * kTera;
  figures.flops["fp16"] = row.tflops * kTera;
  figures.memory_bytes_per_second = row.memory_gbps * kGigaOfPresets;
  figures.memory_bytes = row.memory_gib * kGib;
  figures.host_bytes_per_second = row.link_gbps * kGigaOfPresets;
  figures.source = row.source;
  figures.assumptions = row.assumptions;
  profile.device = figures;
  hardware::Profile& host = profile.machine;
  host.cpu_name = row.host_name;
  host.cpus.resize(row.host_cores);
  std::iota(host.cpus.begin(), host.cpus.end(), 0);
  host.isa = "avx512";
  host.f32_gflops = row.host_tflops * 1e3;
  host.read_gbps = row.host_memory_gbps;
  profile.host_memory_bytes = row.host_memory_gib * kGib;
  profile.host_source = row.source;
  profile.host_assumptions = "its instruction set is AVX-512";
  profile.links = LinksWithinHost(*gpu, "pcie3");
  profile.links.push_back(Network(200, false));
  if (const Status added = AddOperators(*gpu, profile); !added) return added.error();
  return profile;
}

// Operators that were measured on this GPU were at the data sheet's clock: they give shares of its
// limits, as those of another GPU do.
Result<MachineProfile> FromTestbed(const TestbedRow& row) {
  Result<MachineProfile> profile = Preset(row.machine);
  if (!profile) return profile.error();
  DeviceFigures& figures = *profile->device;
  for (const auto& [name, model] : profile->operators) {
    profile->measured_on.try_emplace(name, OtherMachine{figures, LinkOfHost(*profile)});
  }
  for (auto& [format, flops] : figures.flops) flops *= row.clock_ghz / row.sheet_ghz;
  figures.source = kFindepSource + figures.source;
  figures.assumptions +=
      fmt::format("{}{}; rates are those of the data sheet at {} GHz, times {} / {}",
                  figures.assumptions.empty() ? "" : "; ", row.assumptions, row.sheet_ghz,
                  row.clock_ghz, row.sheet_ghz);
  return profile;
}

// The preset's name without "-200g" or "-400g", and what that says.
std::pair<std::string, std::optional<int>> WithoutNetwork(std::string_view name) {
  for (const int gbits : kNetworks) {
    const std::string suffix = fmt::format("-{}g", gbits);
    if (!name.ends_with(suffix)) continue;
    name.remove_suffix(suffix.size());
    return {std::string(name), gbits};
  }
  return {std::string(name), std::nullopt};
}

}  // namespace

const std::vector<GpuPreset>& GpuPresets() {
  static const std::vector<GpuPreset> presets = [] {
    std::vector<GpuPreset> all;
    for (const GpuRow& row : kGpus) all.push_back(FromRow(row));
    return all;
  }();
  return presets;
}

Result<GpuPreset> FindGpu(std::string_view name) {
  const GpuPreset* best = nullptr;
  std::string known;
  for (const GpuPreset& gpu : GpuPresets()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", gpu.key);
    if (gpu.key == name || gpu.figures.name == name) return gpu;
    // The longest part counts: "L4" is in the name of an L40S, "A10" in that of an A100.
    const bool is_named = name.find(gpu.name_in_tables) != std::string_view::npos;
    if (is_named && (best == nullptr || gpu.name_in_tables.size() > best->name_in_tables.size())) {
      best = &gpu;
    }
  }
  if (best != nullptr) return *best;
  return Error{fmt::format("the device {} has no preset; there are {}", Quote(name), known)};
}

double Distance(const GpuPreset& a, const GpuPreset& b) {
  const auto flops_per_byte = [](const GpuPreset& gpu) {
    return gpu.figures.flops.at("bf16") / gpu.figures.memory_bytes_per_second;
  };
  return std::abs(a.architecture - b.architecture) +
         std::abs(std::log2(flops_per_byte(a) / flops_per_byte(b)));
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const GpuMachineRow& row : kGpuMachines) {
    names.emplace_back(row.name);
    for (const int gbits : kNetworks) {
      if (gbits != row.network_gbits) names.push_back(fmt::format("{}-{}g", row.name, gbits));
    }
  }
  for (const HostedGpuRow& row : kHostedGpus) names.emplace_back(row.name);
  for (const TestbedRow& row : kTestbeds) names.emplace_back(row.name);
  for (const HostRow& row : kHosts) names.emplace_back(row.key);
  return names;
}

std::string MeantPresets(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::vector<std::string> names = PresetNames();
  std::vector<std::string> longer;
  for (const std::string& known : names) {
    if (known.starts_with(lower + "-") && !lower.empty()) longer.push_back(known);
  }
  // A name with fewer parts is the beginning of several; the whole of one is that one.
  const bool is_name = std::find(names.begin(), names.end(), lower) != names.end();
  if (is_name || longer.empty()) return DidYouMean(lower, names);
  return fmt::format("; those that begin so are {}", fmt::join(longer, ", "));
}

Result<MachineProfile> Preset(std::string_view name) {
  for (const HostRow& row : kHosts) {
    if (name == row.key) return FromHost(row);
  }
  for (const HostedGpuRow& row : kHostedGpus) {
    if (name == row.name) return FromHostedGpu(row);
  }
  for (const TestbedRow& row : kTestbeds) {
    if (name == row.name) return FromTestbed(row);
  }
  const auto [machine, network_gbits] = WithoutNetwork(name);
  for (const GpuMachineRow& row : kGpuMachines) {
    if (row.name != machine) continue;
    const Result<GpuPreset> gpu = FindGpu(row.gpu);
    if (!gpu) return gpu.error();
    MachineProfile profile;
    profile.device = gpu->figures;
    profile.links = LinksWithinHost(*gpu, row.link);
    profile.links.push_back(
        Network(network_gbits.value_or(row.network_gbits), gpu->nvlink_ranks >= kHostGpus));
    if (const Status added = AddOperators(*gpu, profile); !added) return added.error();
    return profile;
  }
  return Error{fmt::format("there is no preset {}{}", Quote(name), MeantPresets(name))};
}

}  // namespace convene::cost
