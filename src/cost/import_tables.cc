#include "cost/import_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/digest.h"
#include "base/quote.h"

namespace convene::cost {
namespace {

// By operator, how near the nearest device is of which there is a table of it.
std::map<std::string, double> NearestDistances(const GpuPreset& gpu,
                                               const std::vector<NamedTable>& tables) {
  std::map<std::string, double> nearest;
  for (const NamedTable& table : tables) {
    for (const MeasuredOperator& measured : table.operators) {
      const double distance = Distance(gpu, measured.gpu);
      const auto [found, is_new] = nearest.try_emplace(measured.name, distance);
      if (!is_new) found->second = std::min(found->second, distance);
    }
  }
  return nearest;
}

bool CommunicatesOnly(const MeasuredOperator& measured) {
  return !measured.name.starts_with("product") && !measured.name.starts_with("grouped_product");
}

// Whether its ideal times on the target are other ones than on the device that was measured.
bool IsRelative(const MeasuredOperator& measured, const GpuPreset& gpu) {
  if (measured.gpu.key != gpu.key) return true;
  if (!CommunicatesOnly(measured)) return false;
  return measured.samples[0].ideal_seconds != measured.target_ideal_seconds[0];
}

std::string SourceOf(const std::string& table, const MeasuredOperator& measured,
                     const GpuPreset& gpu, bool is_relative) {
  const std::string where = fmt::format("{}, {}", table, measured.kernel);
  if (!is_relative) return where;
  if (measured.gpu.key == gpu.key) {
    return fmt::format("efficiency on {} over another link: {}", measured.gpu.figures.name, where);
  }
  return fmt::format("efficiency of the nearest relative with a table, {}: {}",
                     measured.gpu.figures.name, where);
}

}  // namespace

int LevelOfHost(const std::vector<LinkLevel>& levels) {
  constexpr int kRanksOfHost = 8;
  for (size_t level = 0; level < levels.size(); ++level) {
    if (levels[level].num_ranks == 0 || levels[level].num_ranks >= kRanksOfHost) {
      return static_cast<int>(level);
    }
  }
  return -1;
}

double LinkOfHost(const MachineProfile& machine) {
  const int level = LevelOfHost(machine.links);
  return level < 0 ? 0 : machine.links[level].bytes_per_second;
}

std::string WhyNoKernels(std::string_view operator_name, const GpuPreset& gpu,
                         const std::vector<LinkLevel>& levels) {
  if (operator_name != "dispatch" && operator_name != "combine" &&
      !operator_name.starts_with("all_reduce")) {
    return "";
  }
  constexpr int kAmpere = 2;
  const bool is_joined = LevelOfHost(levels) == 0 && levels[0].num_ranks > 0 &&
                         levels[0].num_ranks <= gpu.nvlink_ranks &&
                         levels[0].bytes_per_second == gpu.nvlink_bytes_per_second;
  if (is_joined && gpu.architecture >= kAmpere) return "";
  return "its kernels need GPUs of Ampere or later, and NVLink among all ranks of a host";
}

ChosenOperators ChooseOperators(const MachineProfile& machine, std::vector<NamedTable> tables) {
  CHECK(machine.device.has_value());
  const Result<GpuPreset> gpu = FindGpu(machine.device->name);
  CHECK(gpu.ok());
  const std::map<std::string, double> nearest = NearestDistances(*gpu, tables);
  ChosenOperators chosen;
  std::set<std::string> taken;
  for (NamedTable& table : tables) {
    for (MeasuredOperator& measured : table.operators) {
      const std::string what = fmt::format("{} of {}", measured.name, table.name);
      if (measured.target_ideal_seconds.size() != measured.samples.size()) {
        chosen.passed_over.push_back(fmt::format("{}: {}", what, measured.not_on_target));
        continue;
      }
      if (const std::string why = WhyNoKernels(measured.name, *gpu, machine.links); !why.empty()) {
        chosen.passed_over.push_back(fmt::format("{}: {}", what, why));
        continue;
      }
      if (Distance(*gpu, measured.gpu) > nearest.at(measured.name)) {
        chosen.passed_over.push_back(
            fmt::format("{}: another table is of a device that is nearer to {} than {}", what,
                        gpu->figures.name, measured.gpu.figures.name));
        continue;
      }
      std::string name = measured.name;
      if (taken.contains(name)) name += fmt::format(", {}", measured.kernel);
      if (!taken.insert(name).second) {
        chosen.passed_over.push_back(fmt::format("{}: an earlier table has it", what));
        continue;
      }
      const bool is_relative = IsRelative(measured, *gpu);
      std::string source = SourceOf(table.name, measured, *gpu, is_relative);
      chosen.operators.push_back({.name = std::move(name),
                                  .source = std::move(source),
                                  .is_relative = is_relative,
                                  .measured = std::move(measured)});
    }
  }
  return chosen;
}

Result<ImportedOperator> ImportOperator(const ChosenOperator& chosen, size_t most_points) {
  const std::vector<OperatorSample> samples =
      chosen.is_relative ? SamplesOnTarget(chosen.measured) : chosen.measured.samples;
  // Rows with the same features stay together, so that the rest is unseen. Those with the smallest
  // digests are fitted, since FitOperatorModel divides by the digests' lower bits.
  std::map<uint64_t, std::vector<OperatorSample>> by_digest;
  for (const OperatorSample& sample : samples) {
    by_digest[DigestOf(std::as_bytes(std::span(sample.features)))].push_back(sample);
  }
  std::vector<OperatorSample> fitted;
  std::vector<OperatorSample> rest;
  for (const auto& [digest, alike] : by_digest) {
    std::vector<OperatorSample>& to = fitted.size() + alike.size() <= most_points ? fitted : rest;
    to.insert(to.end(), alike.begin(), alike.end());
  }
  Result<OperatorModel> model = FitOperatorModel({.name = chosen.name,
                                                  .source = chosen.source,
                                                  .feature_names = chosen.measured.feature_names},
                                                 fitted);
  if (!model) return model.error();

  ImportedOperator imported = {.model = *std::move(model)};
  imported.num_rows = samples.size();
  imported.num_rest = rest.size();
  std::vector<double> errors;
  for (const OperatorSample& sample : rest) {
    const OperatorPrediction prediction =
        imported.model.Predict(sample.features, sample.ideal_seconds);
    errors.push_back(std::abs(prediction.seconds / sample.seconds - 1));
  }
  if (errors.empty()) return imported;
  std::sort(errors.begin(), errors.end());
  imported.rest_median = errors[errors.size() / 2];
  imported.rest_p95 = errors[(errors.size() * 95) / 100];
  return imported;
}

}  // namespace convene::cost
