#include "cost/machine_profile.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/quote.h"
#include "base/units.h"
#include "cost/json_reader.h"

namespace convene::cost {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr size_t kMostOperators = 256;
constexpr size_t kMostFormats = 16;
constexpr size_t kMostLinks = 16;
constexpr size_t kMostSteps = 256;
constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr int64_t kMostCount = 1 << 24;
constexpr double kMostLatency = 1e3;  // seconds
constexpr LinkSharing kSharings[] = {LinkSharing::kNobody, LinkSharing::kHost,
                                     LinkSharing::kMedium};

ordered_json ToJson(const DeviceFigures& device) {
  return {{"name", device.name},
          {"flops", device.flops},
          {"memory_bytes_per_second", device.memory_bytes_per_second},
          {"memory_bytes", device.memory_bytes},
          {"num_multiprocessors", device.num_multiprocessors},
          {"host_bytes_per_second", device.host_bytes_per_second},
          {"source", device.source},
          {"assumptions", device.assumptions}};
}

Result<DeviceFigures> DeviceFromJson(const json& object) {
  JsonReader reader(object);
  DeviceFigures device;
  reader.Text("name", device.name);
  if (const json* flops = reader.Object("flops", kMostFormats)) {
    JsonReader rates(*flops);
    for (const auto& [format, rate] : flops->items()) {
      rates.Rate(format.c_str(), device.flops[format]);
    }
    if (const Status read = rates.status(); !read) return read.error().At("\"flops\"");
  }
  reader.Rate("memory_bytes_per_second", device.memory_bytes_per_second);
  reader.Whole("memory_bytes", 0, kMostBytes, device.memory_bytes);
  reader.Whole("num_multiprocessors", 0, kMostCount, device.num_multiprocessors);
  if (object.contains("host_bytes_per_second")) {
    reader.Rate("host_bytes_per_second", device.host_bytes_per_second);
  }
  reader.Text("source", device.source);
  reader.Text("assumptions", device.assumptions);
  if (const Status read = reader.status(); !read) return read.error();
  return device;
}

ordered_json ToJson(const LinkLevel& link) {
  return {{"name", link.name},
          {"num_ranks", link.num_ranks},
          {"bytes_per_second", link.bytes_per_second},
          {"latency_seconds", link.latency_seconds},
          {"shared_by", NameOf(link.shared_by)},
          {"source", link.source},
          {"assumptions", link.assumptions}};
}

Result<LinkLevel> LinkFromJson(const json& object) {
  JsonReader reader(object);
  LinkLevel link;
  std::string shared_by;
  reader.Text("name", link.name);
  reader.Whole("num_ranks", 0, kMostCount, link.num_ranks);
  reader.Rate("bytes_per_second", link.bytes_per_second);
  reader.Number("latency_seconds", 0, kMostLatency, link.latency_seconds);
  reader.Text("shared_by", shared_by);
  reader.Text("source", link.source);
  reader.Text("assumptions", link.assumptions);
  if (const Status read = reader.status(); !read) return read.error();
  for (const LinkSharing sharing : kSharings) {
    if (NameOf(sharing) != shared_by) continue;
    link.shared_by = sharing;
    return link;
  }
  return Error{
      fmt::format("\"shared_by\" is {}; it must be nobody, host or medium", Quote(shared_by))};
}

Status ReadOperators(const json& object, MachineProfile& profile) {
  for (const auto& [name, item] : object.items()) {
    Result<OperatorModel> model = OperatorModelFromJson(item);
    if (!model) return model.error().At(fmt::format("operator {}", Quote(name)));
    profile.operators.emplace(name, *std::move(model));
  }
  return {};
}

Status ReadMeasuredOn(const json& object, MachineProfile& profile) {
  const auto found = object.find("measured_on");
  if (found == object.end()) return {};
  if (!found->is_object() || found->size() > kMostOperators) {
    return Error{
        fmt::format("\"measured_on\" is no object of at most {} operators", kMostOperators)};
  }
  for (const auto& [name, item] : found->items()) {
    if (!profile.operators.contains(name)) {
      return Error{fmt::format("\"measured_on\" names {}, which is no operator", Quote(name))};
    }
    JsonReader reader(item);
    OtherMachine other;
    reader.Rate("link_bytes_per_second", other.link_bytes_per_second);
    const json* device = reader.Object("device", kMostCount);
    if (const Status read = reader.status(); !read) return read.error().At("\"measured_on\"");
    Result<DeviceFigures> figures = DeviceFromJson(*device);
    if (!figures) return figures.error().At("\"measured_on\"");
    other.device = *std::move(figures);
    profile.measured_on.emplace(name, std::move(other));
  }
  return {};
}

Status ReadSteps(const json& object, MachineProfile& profile) {
  const auto list = object.find("steps");
  if (list == object.end()) return {};
  if (!list->is_array() || list->size() > kMostSteps) {
    return Error{fmt::format("\"steps\" is no list of at most {} costs of steps", kMostSteps)};
  }
  for (const json& item : *list) {
    Result<StepCosts> costs = StepCostsFromJson(item);
    if (!costs) return costs.error().At(fmt::format("costs of steps {}", profile.steps.size()));
    if (profile.CostsOf(costs->num_ranks, costs->num_threads, costs->weights) != nullptr) {
      return Error{fmt::format("the costs of {} of {} with weights in {} are there twice",
                               FormatCount(static_cast<uint64_t>(costs->num_ranks), "rank"),
                               FormatCount(static_cast<uint64_t>(costs->num_threads), "thread"),
                               Quote(costs->weights))};
    }
    profile.steps.push_back(*std::move(costs));
  }
  return {};
}

Status ReadLinks(const json& list, MachineProfile& profile) {
  for (const json& item : list) {
    Result<LinkLevel> link = LinkFromJson(item);
    if (!link) return link.error().At(fmt::format("link {}", profile.links.size()));
    profile.links.push_back(*std::move(link));
  }
  return {};
}

}  // namespace

DeviceFigures FiguresOf(const hardware::GpuProfile& gpu) {
  DeviceFigures figures{.name = gpu.name,
                        .memory_bytes_per_second = 1e9 * gpu.read_gbps,
                        .memory_bytes = gpu.memory_bytes,
                        .num_multiprocessors = gpu.num_multiprocessors,
                        .host_bytes_per_second = 1e9 * gpu.to_device_gbps,
                        .source = "convene measure"};
  if (gpu.bf16_gflops > 0) figures.flops["bf16"] = 1e9 * gpu.bf16_gflops;
  if (gpu.f32_gflops > 0) figures.flops["f32"] = 1e9 * gpu.f32_gflops;
  return figures;
}

std::string_view NameOf(LinkSharing sharing) {
  switch (sharing) {
    case LinkSharing::kNobody:
      return "nobody";
    case LinkSharing::kHost:
      return "host";
    case LinkSharing::kMedium:
      return "medium";
  }
  return "";
}

DiskCost DiskOf(const hardware::Profile& machine) {
  constexpr double kGiga = 1e9;
  return {.bytes_per_second = kGiga * machine.disk_gbps,
          .core_seconds_per_byte = machine.disk_core_seconds_per_gb / kGiga};
}

ordered_json ToJson(const MachineProfile& profile) {
  ordered_json object = {{"version", kVersion}, {"machine", hardware::ToJson(profile.machine)}};
  if (profile.host_memory_bytes > 0) object["host_memory_bytes"] = profile.host_memory_bytes;
  if (!profile.host_source.empty()) object["host_source"] = profile.host_source;
  if (!profile.host_assumptions.empty()) object["host_assumptions"] = profile.host_assumptions;
  if (profile.device) object["device"] = ToJson(*profile.device);
  ordered_json& links = object["links"] = ordered_json::array();
  for (const LinkLevel& link : profile.links) links.push_back(ToJson(link));
  ordered_json& operators = object["operators"] = ordered_json::object();
  for (const auto& [name, model] : profile.operators) operators[name] = ToJson(model);
  if (!profile.measured_on.empty()) {
    ordered_json& others = object["measured_on"] = ordered_json::object();
    for (const auto& [name, other] : profile.measured_on) {
      others[name] = {{"device", ToJson(other.device)},
                      {"link_bytes_per_second", other.link_bytes_per_second}};
    }
  }
  ordered_json& steps = object["steps"] = ordered_json::array();
  for (const StepCosts& costs : profile.steps) steps.push_back(ToJson(costs));
  return object;
}

const StepCosts* MachineProfile::CostsOf(int num_ranks, int num_threads,
                                         std::string_view weights) const {
  for (const StepCosts& costs : steps) {
    const bool same = costs.num_ranks == num_ranks && costs.num_threads == num_threads;
    if (same && costs.weights == weights) return &costs;
  }
  return nullptr;
}

StepCosts* MachineProfile::CostsOf(int num_ranks, int num_threads, std::string_view weights) {
  return const_cast<StepCosts*>(std::as_const(*this).CostsOf(num_ranks, num_threads, weights));
}

Result<MachineProfile> MachineProfileFromJson(const json& object) {
  JsonReader reader(object);
  int version = 0;
  reader.Whole("version", 0, kMostCount, version);
  if (const Status read = reader.status(); !read) return read.error();
  if (version != kVersion) {
    return Error{fmt::format("its version is {}, this program reads {}", version, kVersion)};
  }
  const json* links = reader.Array("links", kMostLinks);
  const json* operators = reader.Object("operators", kMostOperators);
  const json* machine = reader.Object("machine", kMostCount);
  if (const Status read = reader.status(); !read) return read.error();

  MachineProfile profile;
  if (object.contains("host_memory_bytes")) {
    reader.Whole("host_memory_bytes", 0, kMostBytes, profile.host_memory_bytes);
  }
  if (object.contains("host_source")) reader.Text("host_source", profile.host_source);
  if (object.contains("host_assumptions")) {
    reader.Text("host_assumptions", profile.host_assumptions);
  }
  if (const Status read = reader.status(); !read) return read.error();
  Result<hardware::Profile> host = hardware::ProfileFromJson(*machine);
  if (!host) return host.error().At("\"machine\"");
  profile.machine = *std::move(host);
  if (const auto device = object.find("device"); device != object.end()) {
    Result<DeviceFigures> figures = DeviceFromJson(*device);
    if (!figures) return figures.error().At("\"device\"");
    profile.device = *std::move(figures);
  }
  if (const Status read = ReadLinks(*links, profile); !read) return read.error();
  if (const Status read = ReadOperators(*operators, profile); !read) return read.error();
  if (const Status read = ReadMeasuredOn(object, profile); !read) return read.error();
  if (const Status read = ReadSteps(object, profile); !read) return read.error();
  return profile;
}

}  // namespace convene::cost
