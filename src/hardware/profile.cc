#include "hardware/profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/environment.h"
#include "base/json.h"
#include "base/open_file.h"
#include "base/read_file.h"

namespace convene::hardware {
namespace {

using nlohmann::json;

constexpr int kVersion = 4;
constexpr uint64_t kMaxFileBytes = uint64_t{16} << 20;
constexpr double kMostRate = 1e12;        // in GFLOP/s and GB/s: what no machine has
constexpr uint64_t kMostCount = 1 << 24;  // of CPUs, nodes, rows and tokens
constexpr size_t kMostGpus = 64;
constexpr size_t kMostCaches = 16;
constexpr const char* kRemedy = "run `convene measure` to write it anew";

// What a member of each kind must be, if `json` is not that; null if it is.
const char* Mismatch(const json& member, const std::string&) {
  return member.is_string() ? nullptr : "a string";
}
const char* Mismatch(const json& member, bool) {
  return member.is_boolean() ? nullptr : "true or false";
}
const char* Mismatch(const json& member, double) {
  const double number = member.is_number() ? member.get<double>() : -1;
  return number >= 0 && number <= kMostRate ? nullptr : "a number from 0 to 1e12";
}
const char* Mismatch(const json& member, uint64_t) {
  const bool fits =
      member.is_number_unsigned() || (member.is_number_integer() && member.get<int64_t>() >= 0);
  return fits ? nullptr : "a whole number of at least 0";
}
const char* Mismatch(const json& member, int) {
  if (const char* wanted = Mismatch(member, uint64_t{0})) return wanted;
  return member.get<uint64_t>() <= kMostCount ? nullptr : "a whole number from 0 to 2^24";
}
const char* Mismatch(const json& member, const std::vector<int>&) {
  if (!member.is_array()) return "a list of whole numbers from 0 to 2^24";
  for (const auto& item : member) {
    if (Mismatch(item, 0) != nullptr) return "a list of whole numbers from 0 to 2^24";
  }
  return nullptr;
}

const char* Mismatch(const json& member, const std::vector<uint64_t>&) {
  constexpr const char* kWanted = "a list of at most 16 whole numbers";
  if (!member.is_array() || member.size() > kMostCaches) return kWanted;
  for (const auto& item : member) {
    if (Mismatch(item, uint64_t{0}) != nullptr) return kWanted;
  }
  return nullptr;
}

// Reads the members of an object up to the first that does not fit, which is the error.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {}

  template <typename T>
  void Read(const char* key, T& value) {
    if (error_) return;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      error_ = Error{fmt::format("\"{}\" is missing", key)};
    } else if (const char* wanted = Mismatch(*found, value)) {
      error_ = Error{fmt::format("\"{}\" must be {}", key, wanted)};
    } else {
      value = found->template get<T>();
    }
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const json& object_;
  std::optional<Error> error_;
};

// Calls `visit` with the key and the value of each member; Object is a profile, const or not.
template <typename Object, typename Visit>
void ForEachMember(Object& profile, const Visit& visit) {
  visit("cpu_name", profile.cpu_name);
  visit("cpus", profile.cpus);
  visit("isa", profile.isa);
  visit("f32_gflops", profile.f32_gflops);
  visit("bf16_gflops", profile.bf16_gflops);
  visit("int8_gops", profile.int8_gops);
  visit("read_gbps", profile.read_gbps);
  visit("disk_gbps", profile.disk_gbps);
  visit("disk_directory", profile.disk_directory);
  visit("disk_direct", profile.disk_direct);
  visit("last_level_cache_bytes", profile.last_level_cache_bytes);
  visit("num_numa_nodes", profile.num_numa_nodes);
  visit("num_interleaved_nodes", profile.num_interleaved_nodes);
  visit("dense_from_rows", profile.dense_from_rows);
  visit("expand_from_tokens", profile.expand_from_tokens);
  visit("panel_streaming", profile.panel_streaming);
  visit("huge_page_share", profile.huge_page_share);
  visit("date", profile.date);
}

// Those that profiles of before have not.
template <typename Object, typename Visit>
void ForEachNewMember(Object& profile, const Visit& visit) {
  visit("cpuid", profile.cpuid);
  visit("cache_bytes", profile.cache_bytes);
  visit("disk_gbps_beside", profile.disk_gbps_beside);
  visit("disk_core_seconds_per_gb", profile.disk_core_seconds_per_gb);
}

// The same of a GPU's.
template <typename Object, typename Visit>
void ForEachMemberOfGpu(Object& gpu, const Visit& visit) {
  visit("index", gpu.index);
  visit("name", gpu.name);
  visit("memory_bytes", gpu.memory_bytes);
  visit("num_multiprocessors", gpu.num_multiprocessors);
  visit("l2_bytes", gpu.l2_bytes);
  visit("pci_link", gpu.pci_link);
  visit("to_device_gbps", gpu.to_device_gbps);
  visit("from_device_gbps", gpu.from_device_gbps);
  visit("both_ways_gbps", gpu.both_ways_gbps);
  visit("pageable_to_device_gbps", gpu.pageable_to_device_gbps);
  visit("pageable_from_device_gbps", gpu.pageable_from_device_gbps);
  visit("staging_gbps", gpu.staging_gbps);
  visit("read_gbps", gpu.read_gbps);
  visit("copy_gbps", gpu.copy_gbps);
  visit("bf16_gflops", gpu.bf16_gflops);
  visit("f32_gflops", gpu.f32_gflops);
  visit("launch_us", gpu.launch_us);
  visit("launch_and_wait_us", gpu.launch_and_wait_us);
  visit("small_copy_us", gpu.small_copy_us);
  visit("small_fetch_us", gpu.small_fetch_us);
}

Status ReadGpus(const json& object, Profile& profile) {
  const auto list = object.find("gpus");
  if (list == object.end()) return {};
  if (!list->is_array() || list->size() > kMostGpus) {
    return Error{fmt::format("\"gpus\" must be a list of at most {}", kMostGpus)};
  }
  for (const json& item : *list) {
    if (!item.is_object()) return Error{"\"gpus\" must be a list of objects"};
    Reader reader(item);
    GpuProfile gpu;
    ForEachMemberOfGpu(gpu, [&](const char* key, auto& value) { reader.Read(key, value); });
    if (reader.error()) return reader.error()->At(fmt::format("GPU {}", profile.gpus.size()));
    profile.gpus.push_back(std::move(gpu));
  }
  return {};
}

Error CannotSave(const std::string& path, int error) {
  return Error{fmt::format("cannot write {}: {}; CONVENE_CACHE_DIR names another directory", path,
                           std::strerror(error)),
               KindOfErrno(error)};
}

}  // namespace

void Profile::SetCpu(const CpuIdentity& cpu) {
  cpu_name = cpu.name;
  cpuid = cpu.cpuid;
  cache_bytes = cpu.cache_bytes;
}

json ToJson(const Profile& profile) {
  json object = {{"version", kVersion}};
  const auto write = [&](const char* key, const auto& value) { object[key] = value; };
  ForEachMember(profile, write);
  ForEachNewMember(profile, write);
  for (const GpuProfile& gpu : profile.gpus) {
    json& item = object["gpus"].emplace_back(json::object());
    ForEachMemberOfGpu(gpu, [&](const char* key, const auto& value) { item[key] = value; });
  }
  return object;
}

Result<Profile> ProfileFromJson(const json& object) {
  if (!object.is_object()) return Error{"it is not an object"};
  Reader reader(object);
  int version = 0;
  reader.Read("version", version);
  if (!reader.error() && version != kVersion) {
    return Error{fmt::format("its version is {}, this program reads {}", version, kVersion)};
  }
  Profile profile;
  ForEachMember(profile, [&](const char* key, auto& value) { reader.Read(key, value); });
  ForEachNewMember(profile, [&](const char* key, auto& value) {
    if (object.contains(key)) reader.Read(key, value);
  });
  if (reader.error()) return *reader.error();
  if (const Status read = ReadGpus(object, profile); !read) return read.error();
  if (profile.huge_page_share > 1) return Error{"\"huge_page_share\" must be a number from 0 to 1"};
  return profile;
}

std::string ProfilePath() { return CacheDirectory() + "/profile.json"; }

Status SaveProfileJson(const json& profile, const std::string& path) {
  std::error_code failure;
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (!directory.empty()) std::filesystem::create_directories(directory, failure);
  if (failure) return CannotSave(path, failure.value());

  // Names of CPUs and directories need not be UTF-8.
  const std::string text = profile.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const int error = ReplaceFile(path, text, 0644);
  return error == 0 ? Status() : CannotSave(path, error);
}

Result<Profile> LoadProfile(const std::string& path) {
  const Result<std::string> text = ReadFile(path, kMaxFileBytes);
  if (!text) return Error{fmt::format("{}: {}", text.error().message, kRemedy), text.error().kind};
  const Result<json> parsed = ParseJson(*text);
  // What else is known of a machine stands beside it.
  const bool is_part = parsed && parsed->is_object() && parsed->contains("machine");
  Result<Profile> profile =
      parsed ? ProfileFromJson(is_part ? (*parsed)["machine"] : *parsed) : parsed.error();
  if (profile) return profile;
  return Error{fmt::format("{} is not a profile of this machine ({}): {}", path,
                           profile.error().message, kRemedy)};
}

std::string CurrentDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace convene::hardware
