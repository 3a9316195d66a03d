#include "base/environment.h"

#include <charconv>
#include <cstdlib>
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

}  // namespace

std::optional<std::string> EnvironmentVariable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

LocalRank LocalRankFromLauncher() {
  struct Launcher {
    const char* rank;
    const char* count;
  };
  static constexpr Launcher kLaunchers[] = {
      {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      {"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
  };
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = IntegerVariable(launcher.rank);
    const auto count = IntegerVariable(launcher.count);
    if (rank && count && *rank >= 0 && *rank < *count) return {*rank, *count};
  }
  return {};
}

std::string CacheDirectory() {
  if (const auto directory = EnvironmentVariable("CONVENE_CACHE_DIR")) return *directory;
  if (const auto directory = EnvironmentVariable("XDG_CACHE_HOME")) return *directory + "/convene";
  if (const auto home = EnvironmentVariable("HOME")) return *home + "/.cache/convene";
  return "/tmp/convene-cache";
}

}  // namespace convene
