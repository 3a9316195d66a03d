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

// "2(x3),1" is 2, 2, 2 and 1 tasks on the nodes in order. 0: the text or the node is not there.
int SlurmTasksOnNode(std::string_view text, int node) {
  const auto number_at = [&](size_t* at) {
    int value = 0;
    const auto [stop, error] = std::from_chars(text.data() + *at, text.data() + text.size(), value);
    *at = static_cast<size_t>(stop - text.data());
    return error == std::errc() ? value : 0;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    const int tasks = number_at(&at);
    int nodes = 1;
    if (text.substr(at).starts_with("(x")) {
      at += 2;
      nodes = number_at(&at);
      if (text.substr(at, 1) != ")") break;
      ++at;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (tasks <= 0 || nodes <= 0 || text.substr(at, 1) != ",") break;
  }
  return 0;
}

// What --ntasks-per-node says is a wish, and not there where nobody uttered it.
std::optional<LocalRank> SlurmLocalRank() {
  const auto rank = IntegerVariable("SLURM_LOCALID");
  const auto tasks = EnvironmentVariable("SLURM_STEP_TASKS_PER_NODE");
  const auto node = IntegerVariable("SLURM_NODEID");
  if (!rank || !tasks || !node || *node < 0) return std::nullopt;
  const int count = SlurmTasksOnNode(*tasks, *node);
  if (*rank < 0 || *rank >= count) return std::nullopt;
  return LocalRank{*rank, count};
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
  };
  const LaunchedRank found = FirstLauncher(kLaunchers);
  if (found.launcher.empty()) return SlurmLocalRank().value_or(LocalRank{});
  return {found.rank, found.size};
}

LaunchedRank RankFromLauncher() {
  // Slurm's last: under it, mpirun's daemons are the job step and have its variables.
  static constexpr Launcher kLaunchers[] = {
      {kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"mpirun", "PMI_RANK", "PMI_SIZE"},
      {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
  };
  return FirstLauncher(kLaunchers);
}

std::chrono::seconds LaunchersPatience() {
  constexpr std::chrono::seconds kByDefault{1};
  constexpr int kMost = 24 * 60 * 60;
  const auto text = EnvironmentVariable("OMPI_MCA_odls_base_sigkill_timeout");
  if (!text) return kByDefault;
  int seconds = 0;
  const char* end = text->data() + text->size();
  const auto [parsed, error] = std::from_chars(text->data(), end, seconds);
  if (error != std::errc() || parsed != end || seconds < 0 || seconds > kMost) return kByDefault;
  return std::chrono::seconds(seconds);
}

std::string CacheDirectory() {
  if (const auto directory = EnvironmentVariable("CONVENE_CACHE_DIR")) return *directory;
  if (const auto directory = EnvironmentVariable("XDG_CACHE_HOME")) return *directory + "/convene";
  if (const auto home = EnvironmentVariable("HOME")) return *home + "/.cache/convene";
  return "/tmp/convene-cache";
}

}  // namespace convene
