#include "cli/known_disk.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "base/message.h"
#include "base/plain_number.h"
#include "base/quote.h"
#include "engine/batch_price.h"
#include "engine/rank_options.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/measure_machine.h"
#include "hardware/measure_disk.h"
#include "hardware/profile.h"
#include "hardware/thread_pool.h"
#include "hardware/topology.h"
#include "weights/packed_directory.h"

namespace convene::cli {
namespace {

KnownDisk TakeUsual(const std::string& why, cost::MachineProfile& profile) {
  constexpr double kGiga = 1e9;
  profile.machine.disk_gbps = engine::UsualRates(/*is_gpu=*/false).disk_bytes_per_second / kGiga;
  return {.words = fmt::format("the disk is taken to read {} GB/s, as is usual, since {}",
                               PlainNumber(profile.machine.disk_gbps, 2), why)};
}

Result<hardware::DiskRate> MeasureDiskOf(const ModelOptions& options,
                                         const std::string& directory) {
  constexpr double kSeconds = 0.2;
  constexpr uint64_t kMostFileBytes = uint64_t{64} << 20;
  const Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.load.num_threads);
  if (!cpus) return cpus.error();
  hardware::ThreadPool pool(*cpus);
  const std::optional<uint64_t>& budget = options.load.memory_budget;
  return hardware::MeasureDiskRead(
      directory, kMostFileBytes, kSeconds, pool.started() ? &pool : nullptr,
      budget ? engine::LeftOfBudget(*budget) : std::numeric_limits<uint64_t>::max());
}

// Beside the costs of steps, which were kept before.
void KeepDisk(const hardware::DiskRate& rate, const std::string& directory,
              const cost::MachineProfile& profile) {
  Result<cost::MachineProfile> kept = evaluate::LoadMachineProfile(hardware::ProfilePath());
  if (!kept || !evaluate::IsOfSameMachine(*kept, profile)) return;
  evaluate::SetDisk(rate, directory, kept->machine);
  const Status saved = hardware::SaveProfileJson(cost::ToJson(*kept), hardware::ProfilePath());
  if (!saved) PrintNote("the disk's rate is not kept: {}\n", saved.error().message);
}

}  // namespace

KnownDisk LearnDisk(const ModelOptions& options, const std::string& why_not,
                    cost::MachineProfile& profile) {
  if (!why_not.empty()) return TakeUsual(why_not, profile);
  // Where pages are, or will be.
  const bool is_packed = weights::IsPackedDirectory(options.directory);
  const std::string& directory = is_packed ? options.directory : options.load.page_directory;
  std::error_code ignored;  // what is not there then, measuring says
  if (!is_packed) std::filesystem::create_directories(directory, ignored);
  PrintNote("measuring how fast {} is read, once, since experts have no room in memory\n",
            Printable(directory));
  const Result<hardware::DiskRate> rate = MeasureDiskOf(options, directory);
  if (!rate) return TakeUsual(rate.error().message, profile);
  const std::string whole = std::filesystem::absolute(directory, ignored).string();
  KeepDisk(*rate, whole, profile);
  evaluate::SetDisk(*rate, whole, profile.machine);
  return {.words = fmt::format("{} is read at {} GB/s, which was measured just now{}",
                               Printable(directory), PlainNumber(profile.machine.disk_gbps, 2),
                               rate->direct ? "" : ", perhaps from the page cache"),
          .is_measured = true};
}

}  // namespace convene::cli
