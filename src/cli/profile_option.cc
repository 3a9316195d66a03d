#include "cli/profile_option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <vector>

#include "base/closest_name.h"
#include "base/message.h"
#include "base/units.h"
#include "cli/parsed_by.h"
#include "cli/value_options.h"
#include "cost/presets.h"
#include "engine/plan_question.h"
#include "evaluate/machine_profile_file.h"
#include "hardware/memory_status.h"
#include "hardware/profile.h"

namespace convene::cli {

namespace {

constexpr double kGibibyte = double{1 << 30};

}  // namespace

void AddProfileOption(CLI::App& app, std::string& profile) {
  AddPath(app, "--profile", profile,
          "Costs: a file of convene measure, or a preset (default: what was kept)")
      ->type_name("FILE|PRESET");
}

namespace {

std::string HowToMeasureProfile(const std::string& profile, const std::string& path,
                                int num_ranks) {
  return fmt::format("measure one with: {}convene measure{}",
                     num_ranks > 1 ? fmt::format("mpirun -n {} ", num_ranks) : "",
                     profile.empty() ? "" : " --out " + path);
}

bool IsPreset(const std::string& profile) {
  const std::vector<std::string> presets = cost::PresetNames();
  return std::find(presets.begin(), presets.end(), profile) != presets.end();
}

std::string PathOf(const std::string& profile) {
  return profile.empty() ? hardware::ProfilePath() : profile;
}

}  // namespace

Result<cost::MachineProfile> FindProfile(const std::string& profile, int num_ranks) {
  if (IsPreset(profile)) return cost::Preset(profile);
  const std::string path = PathOf(profile);
  Result<cost::MachineProfile> loaded = evaluate::LoadMachineProfile(path);
  if (!loaded && loaded.error().kind == ErrorKind::kNotFound) {
    const std::string meant = DidYouMean(profile, cost::PresetNames());
    return NotFound(
        fmt::format("there is no profile {}, and no preset of that name{}{}", path,
                    profile.empty() ? "" : " (convene import-profile --list)",
                    meant.empty() ? ": " + HowToMeasureProfile(profile, path, num_ranks) : meant));
  }
  return loaded;
}

Result<cost::MachineProfile> LoadProfile(const std::string& profile, int num_ranks) {
  Result<cost::MachineProfile> loaded = FindProfile(profile, num_ranks);
  // Presets, and what was exported of them, are known by their operators, and name their links.
  if (loaded && loaded->steps.empty() && !loaded->device && loaded->links.empty()) {
    const std::string path = PathOf(profile);
    return Error{fmt::format("{} has no costs of steps: {}", path,
                             HowToMeasureProfile(profile, path, num_ranks))};
  }
  return loaded;
}

std::string WordsOfRelatives(const cost::MachineProfile& profile) {
  std::map<std::string, std::vector<std::string>> operators;  // by the device of their figures
  for (const auto& [name, other] : profile.measured_on) {
    const std::string at =
        profile.device && other.device.name == profile.device->name ? " at other rates" : "";
    operators[other.device.name + at].push_back(name);
  }
  std::vector<std::string> parts;
  for (const auto& [device, names] : operators) {
    parts.push_back(fmt::format("{} ({})", device, fmt::join(names, ", ")));
  }
  if (parts.empty()) return "";
  return fmt::format("operators have the share of this machine's limits that was measured on {}",
                     fmt::join(parts, " and on "));
}

void AddMemoryOption(CLI::App& app, std::optional<double>& gibibytes) {
  AddNumber(app, "--memory-per-rank", gibibytes, {1e-3, 1e6},
            "In GiB (default: an equal part of this machine's, or the device's)")
      ->type_name("GIB");
  app.add_option_function<std::string>(
         "--memory-budget",
         [&gibibytes](const std::string& text) {
           gibibytes = static_cast<double>(*ParseBytes(text)) / kGibibyte;
         },
         "The same with a unit, as 6GiB; of each process, as for the commands that run a model")
      ->check(ParsedBy(ParseBytes))
      ->excludes("--memory-per-rank")
      ->type_name("SIZE");
}

Status AnswerByProfile(const cost::MachineProfile& profile, std::optional<double> gibibytes,
                       int step_tokens, planner::PlanQuestion& question) {
  if (const int32_t from = profile.machine.expand_from_tokens; from > 0) {
    question.expand_from_tokens = from;
  }
  engine::PlanSetting setting{.step_tokens = step_tokens, .spills_kv = true};
  if (gibibytes) {
    setting.memory_per_rank = static_cast<uint64_t>(*gibibytes * kGibibyte);
  } else if (profile.device) {
    setting.memory_per_rank = profile.device->memory_bytes;
  } else if (profile.steps.empty() && profile.host_memory_bytes > 0) {
    setting.memory_per_rank = profile.host_memory_bytes;  // a rank of a preset is a whole host
  } else {
    const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
    if (!available) return available.error();
    setting.memory_of_host = available->bytes;
    const bool is_elsewhere = profile.steps.empty() && !profile.machine.cpu_name.empty();
    if (is_elsewhere) {
      PrintNote(
          "memory: what this machine has left, {}, since the profile names none; "
          "--memory-per-rank gives another\n",
          FormatBytes(available->bytes));
    }
  }
  engine::AnswerPlanQuestion(setting, question);
  return {};
}

}  // namespace convene::cli
