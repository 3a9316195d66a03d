#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "checkpoint/model_files.h"
#include "checkpoint/synthesize.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/value_options.h"
#include "cli/workload_options.h"
#include "cost/expected_sizes.h"
#include "hardware/topology.h"

namespace convene::cli {
namespace {

class Synth : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "CONFIG", config_path_, "A model's config.json, or its directory");
    AddPath(app, "--out", directory_, "Where to write; must not exist or be empty")
        ->type_name("DIR")
        ->check(NewDirectory())
        ->required();
    AddNumber(app, "--layers", num_layers_, kPositive,
              "Layers to write (default: as many as the model has)");
    AddNumber(app, "--seed", seed_, kAnySeed, "Same seed, same bytes (default: 0)");
    AddPath(
        app, "--router-counts", router_counts_path_,
        "Experts are chosen about as often as these counts say (as --record-routing writes them)")
        ->type_name("FILE.json");
    AddThreadsOption(app, num_threads_);
    AddJsonOption(app, json_path_);
  }

  Status Run() override {
    const Result<std::vector<int>> cpus =
        hardware::CpusForThisRank(LocalRankFromLauncher(), num_threads_);
    if (!cpus) return cpus.error();
    checkpoint::SynthesisOptions options = {.num_layers = num_layers_.value_or(0),
                                            .seed = seed_,
                                            .num_threads = static_cast<int>(cpus->size())};
    if (Status prefers = PreferExperts(options); !prefers) return prefers;
    const auto start = std::chrono::steady_clock::now();
    const Result<checkpoint::SynthesisSummary> summary = Write(options);
    if (!summary) return summary.error();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const double elapsed_s = elapsed.count();

    const double rate = static_cast<double>(summary->size_bytes) / elapsed_s;
    PrintNote("synth: {}, {} in {}, {:.1f} s ({}/s) -> {}\n",
              FormatCount(static_cast<uint64_t>(summary->num_tensors), "tensor"),
              FormatBytes(summary->size_bytes),
              summary->num_shards == 1 ? "one file" : fmt::format("{} shards", summary->num_shards),
              elapsed_s, FormatBytes(static_cast<uint64_t>(rate)), directory_);
    return WriteJson(json_path_, {{"tensors", summary->num_tensors},
                                  {"shards", summary->num_shards},
                                  {"bytes", summary->size_bytes},
                                  {"seconds", elapsed_s},
                                  {"bytes_per_s", rate},
                                  {"out", directory_}});
  }

 private:
  Status PreferExperts(checkpoint::SynthesisOptions& options) const {
    if (router_counts_path_.empty()) return {};
    auto counts = ReadRouterCounts(router_counts_path_);
    if (!counts) return counts.error();
    const Result<model::ModelSpec> spec = checkpoint::OpenConfig(config_path_);
    if (!spec) return spec.error();
    // Of fewer layers than were recorded, which are then the first ones.
    if (options.num_layers > 0) {
      counts->resize(std::min(counts->size(), static_cast<size_t>(options.num_layers)));
    }
    for (size_t layer = 0; layer < counts->size(); ++layer) {
      const size_t known = std::min(layer, spec->layers.size() - 1);
      const auto& moe = spec->layers[known].moe;
      options.router_shares.push_back(
          cost::SharesFromCounts((*counts)[layer], moe ? moe->top_k : 0));
    }
    return {};
  }

  Result<checkpoint::SynthesisSummary> Write(const checkpoint::SynthesisOptions& options) const {
    ProgressLine line(std::chrono::seconds(10));
    return checkpoint::Synthesize(
        config_path_, directory_, options, [&](uint64_t done_bytes, uint64_t total_bytes) {
          if (!line.IsDue()) return;
          line.Show(fmt::format(
              "writing: {:3.0f} % of {}",
              100.0 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes),
              FormatBytes(total_bytes)));
        });
  }

  std::string config_path_;
  std::string directory_;
  std::string router_counts_path_;
  std::optional<int> num_layers_;
  std::optional<int> num_threads_;
  uint64_t seed_ = 0;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeSynth() { return std::make_unique<Synth>(); }

}  // namespace convene::cli
