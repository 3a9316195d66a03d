#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/value_options.h"
#include "evaluate/measure_machine.h"
#include "kernels/choose_kernels.h"
#include "kernels/streaming_choice.h"

namespace convene::cli {
namespace {

std::string DescribeStreaming(const std::vector<int>& measured) {
  const auto choice = kernels::StreamingChoice::FromNumbers(measured);
  if (!choice) return "not measured";
  const auto usual = kernels::StreamingChoice::OfVendor().numbers();
  int num_others = 0;
  for (size_t i = 0; i < usual.size(); ++i) num_others += measured[i] != usual[i];
  return num_others == 0 ? "read as is usual on this vendor's CPUs"
                         : fmt::format(
                               "read otherwise than is usual on this vendor's CPUs in {} of "
                               "{} combinations of format and rows",
                               num_others, usual.size());
}

std::string Describe(const hardware::Profile& profile) {
  std::string text = fmt::format(
      "{}, {} on CPU{} {}, {}\n", profile.cpu_name, FormatCount(profile.cpus.size(), "thread"),
      profile.cpus.size() == 1 ? "" : "s", fmt::join(profile.cpus, ","), profile.isa);
  text += fmt::format("dot products  float32  {:10.1f} GFLOP/s\n", profile.f32_gflops);
  text += fmt::format("              bf16     {:10.1f} GFLOP/s\n", profile.bf16_gflops);
  text += fmt::format("              int8     {:10.1f} Gop/s\n", profile.int8_gops);
  text += fmt::format("memory        read     {:10.1f} GB/s    {:.0f} % in huge pages\n",
                      profile.read_gbps, 100 * profile.huge_page_share);
  if (profile.disk_gbps > 0) {
    text += fmt::format("disk          read     {:10.2f} GB/s    {}{}\n", profile.disk_gbps,
                        profile.disk_directory,
                        profile.disk_direct ? "" : ", perhaps from the page cache");
  }
  text += fmt::format(
      "experts       {}\n",
      profile.dense_from_rows == 0
          ? "grouped is the faster order for every number of rows"
          : fmt::format("one after the other from {} each on",
                        FormatCount(static_cast<uint64_t>(profile.dense_from_rows), "row")));
  text += fmt::format(
      "latent        {}\n",
      profile.expand_from_tokens == 0
          ? "the absorbed form is the faster one for prompts of every length"
          : fmt::format("expanded for prompts of {} and more",
                        FormatCount(static_cast<uint64_t>(profile.expand_from_tokens), "token")));
  text += fmt::format("panels        {}\n", DescribeStreaming(profile.panel_streaming));
  text +=
      fmt::format("last-level cache {}, NUMA nodes {}{}\n",
                  FormatBytes(profile.last_level_cache_bytes), profile.num_numa_nodes,
                  profile.num_interleaved_nodes > 1
                      ? fmt::format(", weights interleaved over {}", profile.num_interleaved_nodes)
                      : "");
  return text;
}

class Measure : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddThreadsOption(app, num_threads_);
    AddNumber(app, "--seconds", options_.budget_s, {0.01, 60.0},
              "Time for each of the eight measurements, 0.01 to 60 (default: 1)")
        ->type_name("S");
    AddPath(app, "--disk", options_.disk_directory,
            "Directory whose disk is measured; must exist (default: where the profile is kept)")
        ->type_name("DIR");
    AddJsonOption(app, json_path_);
  }

  bool refuses_ranks() const override { return true; }

  Status Run() override {
    options_.disk_is_required = !options_.disk_directory.empty();
    if (!options_.disk_is_required) options_.disk_directory = CacheDirectory();

    const Result<hardware::Topology> topology = hardware::ReadTopology();
    if (!topology) return topology.error();
    const Result<hardware::Isa> isa = hardware::ChooseIsa();
    if (!isa) return isa.error();
    Result<std::vector<int>> cpus =
        hardware::CpusForRank(*topology, LocalRankFromLauncher(), num_threads_);
    if (!cpus) return cpus.error();
    const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
    if (!kernels) return kernels.error();
    options_.choices_of = *kernels;
    hardware::ThreadPool pool(*std::move(cpus));
    if (const Status started = pool.started(); !started) return started.error();
    const Result<hardware::Profile> profile =
        evaluate::MeasureMachine(*topology, pool, *isa, options_);
    if (!profile) return profile.error();

    if (const Status told = WriteReport(json_path_, Describe(*profile)); !told) return told;
    for (const std::string& reason : hardware::UnsupportedIsas()) {
      PrintNote("not usable here: {}\n", reason);
    }
    const std::string path = hardware::ProfilePath();
    if (const Status saved = hardware::SaveProfile(*profile, path); !saved) return saved;
    PrintNote("kept in {}\n", path);
    return WriteJson(json_path_, hardware::ToJson(*profile));
  }

 private:
  std::optional<int> num_threads_;
  evaluate::MeasureOptions options_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeMeasure() { return std::make_unique<Measure>(); }

}  // namespace convene::cli
