// The option that says where costs are from: a profile's file, a preset, or what was kept of this
// machine.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"
#include "cost/machine_profile.h"

namespace convene::cli {

// `profile` must outlive the parser; it stays empty where the kept one is meant.
void AddProfileOption(CLI::App& app, std::string& profile);

// With costs of steps, or of a device and its operators where there are none (presets, and what
// convene import-profile writes). Errors: no such file and no such preset, another version, a file
// with neither; they say how to measure a profile on so many ranks.
Result<cost::MachineProfile> LoadProfile(const std::string& profile, int num_ranks);

}  // namespace convene::cli
