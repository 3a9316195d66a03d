// A cache directory of a test's own with a profile in it of this machine, as `convene measure`
// would keep it: all CPUs, these kernels, and panels read in one way that no machine takes by
// itself for everything.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/environment.h"
#include "hardware/affinity.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "kernels/streaming_choice.h"

namespace convene::engine {

class KeptMachine {
 public:
  explicit KeptMachine(const std::string& directory)
      : before_(EnvironmentVariable(kName)), directory_(directory) {
    setenv(kName, directory_.c_str(), /*overwrite=*/1);
    const auto topology = hardware::ReadTopology();
    CHECK(topology.ok());
    profile.SetCpu(topology->cpu);
    profile.isa = (*kernels::ChooseKernels())->name;
    profile.cpus = *hardware::CurrentAffinity();
    profile.panel_streaming = streaming.numbers();
    Save();
  }
  ~KeptMachine() {
    std::filesystem::remove_all(directory_);
    if (before_) {
      setenv(kName, before_->c_str(), /*overwrite=*/1);
    } else {
      unsetenv(kName);
    }
  }
  KeptMachine(const KeptMachine&) = delete;
  KeptMachine& operator=(const KeptMachine&) = delete;

  void Save() const {
    CHECK(hardware::SaveProfileJson(ToJson(profile), hardware::ProfilePath()).ok());
  }

  const kernels::StreamingChoice streaming{kernels::kStreamingWays.back()};
  hardware::Profile profile;

 private:
  static constexpr const char* kName = "CONVENE_CACHE_DIR";
  std::optional<std::string> before_;
  std::string directory_;
};

}  // namespace convene::engine
