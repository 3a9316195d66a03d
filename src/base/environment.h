// The environment variables convene reads, all of them here. Not a place for options with a flag.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace convene {

// The variable's value; empty or unset gives nothing.
std::optional<std::string> EnvironmentVariable(const char* name);

struct LocalRank {
  int rank = 0;   // this process among the ranks that a launcher started on this host
  int count = 1;  // how many they are
};

// From OpenMPI, MPICH, Intel MPI or Slurm; {0, 1} without a launcher.
LocalRank LocalRankFromLauncher();

inline constexpr const char* kOpenMpi = "mpirun of OpenMPI";

// This process among all that a launcher started together, on whatever hosts. Its size is what the
// launcher says, not yet that they are connected.
struct LaunchedRank {
  int rank = 0;
  int size = 1;
  std::string launcher;  // kOpenMpi, for instance; empty without one
};

// From OpenMPI, MPICH, Intel MPI or a Slurm job step; {0, 1} without a launcher. A Slurm batch
// script by itself is one process, however many tasks the job may start.
LaunchedRank RankFromLauncher();

// Between SIGTERM and SIGKILL from a launcher that ends its job: what `mpirun` of OpenMPI was told
// (--mca odls_base_sigkill_timeout SECONDS), else its second.
std::chrono::seconds LaunchersPatience();

// The directory for what is measured once and kept: $CONVENE_CACHE_DIR, $XDG_CACHE_HOME/convene or
// ~/.cache/convene.
std::string CacheDirectory();

}  // namespace convene
