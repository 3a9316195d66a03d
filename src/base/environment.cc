#include "base/environment.h"

#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>

namespace convene {
namespace {

std::optional<int> IntegerVariable(const char* name) {
  const std::optional<std::string> text = EnvironmentVariable(name);
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};

LaunchedRank FirstLauncher(std::span<const Launcher> launchers) {
  for (const Launcher& launcher : launchers) {
    const auto rank = IntegerVariable(launcher.rank);
    const auto size = IntegerVariable(launcher.size);
    if (rank && size && *rank >= 0 && *rank < *size) return {*rank, *size, launcher.name};
  }
  return {};
}

}  // namespace

std::optional<std::string> EnvironmentVariable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

LocalRank LocalRankFromLauncher() {
  static constexpr Launcher kLaunchers[] = {
      {"mpirun", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"mpirun", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      {"srun", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
  };
  const LaunchedRank found = FirstLauncher(kLaunchers);
  return {found.rank, found.size};
}

LaunchedRank RankFromLauncher() {
  // Slurm's last: under it, mpirun's daemons are the job step and have its variables.
  static constexpr Launcher kLaunchers[] = {
      {"mpirun of OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"mpirun", "PMI_RANK", "PMI_SIZE"},
      {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
  };
  return FirstLauncher(kLaunchers);
}

std::string CacheDirectory() {
  if (const auto directory = EnvironmentVariable("CONVENE_CACHE_DIR")) return *directory;
  if (const auto directory = EnvironmentVariable("XDG_CACHE_HOME")) return *directory + "/convene";
  if (const auto home = EnvironmentVariable("HOME")) return *home + "/.cache/convene";
  return "/tmp/convene-cache";
}

}  // namespace convene
