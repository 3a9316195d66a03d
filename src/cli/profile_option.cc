#include "cli/profile_option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"
#include "base/quote.h"
#include "base/units.h"
#include "cli/command.h"
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
                     num_ranks > 1 ? fmt::format("mpirun -n {} --bind-to none ", num_ranks) : "",
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
    const std::string meant = cost::MeantPresets(profile);
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

namespace {

Result<std::vector<uint64_t>> ParseGibibytes(std::string_view text) {
  std::vector<uint64_t> bytes;
  if (text.empty())
    return Error{"it is empty; give a number of GiB, or one for each rank, as 16,8"};
  for (const auto part : std::views::split(text, ',')) {
    const std::string number(part.begin(), part.end());
    double gibibytes = 0;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), gibibytes);
    const bool is_number = error == std::errc() && end == number.data() + number.size();
    if (!is_number || !(gibibytes >= 1e-3 && gibibytes <= 1e6)) {
      return Error{fmt::format(
          "{} is no number of GiB from 0.001 to 1000000; give one, or one for each rank, as 16,8",
          Quote(number))};
    }
    bytes.push_back(static_cast<uint64_t>(gibibytes * kGibibyte));
  }
  return bytes;
}

}  // namespace

void AddDiskRateOption(CLI::App& app, std::optional<double>& gigabytes_per_second) {
  AddNumber(app, "--disk-rate", gigabytes_per_second, {1e-6, 1e6},
            "Of reading experts from a disk (default: the profile's)")
      ->type_name("GB/S")
      ->group(kRareOptions);
}

std::vector<uint64_t> MemoryOfRanks::budgets(int num_ranks) const {
  std::vector<uint64_t> budgets = bytes;
  for (uint64_t& budget : budgets) budget += is_budget ? 0 : ProgramBytes(num_ranks);
  return budgets;
}

Error MemoryOfRanks::Explain(Error error, int num_ranks) const {
  if (!is_budget || error.kind != ErrorKind::kResourceExhausted) return error;
  error.message += fmt::format("; of --memory-budget {} about {} are for the program itself",
                               FormatBytes(bytes.front()), FormatBytes(ProgramBytes(num_ranks)));
  return error;
}

uint64_t ProgramBytes(int num_ranks) {
  // A process takes 20 to 24 MiB before it loads a model, with MPI and other ranks 32, and 8 more
  // are left for growth (two cores of a Zen 5, 30 November 2026: convene run, batch, serve, bench).
  constexpr uint64_t kAlone = uint64_t{34} << 20;
  constexpr uint64_t kAmongRanks = uint64_t{44} << 20;
  return num_ranks > 1 ? kAmongRanks : kAlone;
}

void AddMemoryOption(CLI::App& app, MemoryOfRanks& memory) {
  app.add_option_function<std::string>(
         "--memory-per-rank",
         [&memory](const std::string& text) { memory = {.bytes = *ParseGibibytes(text)}; },
         "For the model, in GiB, or of unlike ranks one number for each, as 16,8 (default: an "
         "equal part of this machine's, or the device's)")
      ->check(ParsedBy(ParseGibibytes))
      ->type_name("GIB");
  app.add_option_function<std::string>(
         "--memory-budget",
         [&memory](const std::string& text) {
           memory = {.bytes = {*ParseBytes(text)}, .is_budget = true};
         },
         "Of each process with all that it takes, as for the commands that run a model; with a "
         "unit, as 6GiB")
      ->check(ParsedBy(ParseBytes))
      ->excludes("--memory-per-rank")
      ->type_name("SIZE");
}

Status AnswerByProfile(const cost::MachineProfile& profile, const MemoryOfRanks& memory,
                       int step_tokens, planner::PlanQuestion& question) {
  if (const int32_t from = profile.machine.expand_from_tokens; from > 0) {
    question.expand_from_tokens = from;
  }
  engine::PlanSetting setting{.step_tokens = step_tokens, .spills_kv = true};
  const std::vector<uint64_t>& bytes = memory.bytes;
  if (bytes.size() > 1) {
    if (std::ssize(bytes) != question.num_ranks) {
      return Error{fmt::format(
          "--memory-per-rank has {} numbers, and there are {}: give one for each, "
          "or one for all (--ranks says how many there are)",
          bytes.size(), FormatCount(static_cast<uint64_t>(question.num_ranks), "rank"))};
    }
    setting.rank_memory = bytes;
  } else if (bytes.size() == 1) {
    // Of a device the program takes nothing.
    const bool has_program = memory.is_budget && !profile.device;
    const uint64_t program = has_program ? ProgramBytes(question.num_ranks) : 0;
    if (bytes.front() <= program) {
      return ResourceExhausted(fmt::format(
          "--memory-budget {} has no room for a model: a process takes about {} without one",
          FormatBytes(bytes.front()), FormatBytes(program)));
    }
    setting.memory_per_rank = bytes.front() - program;
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
