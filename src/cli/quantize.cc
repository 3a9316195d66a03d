#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/load_messages.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/value_options.h"
#include "engine/model_source.h"
#include "hardware/topology.h"
#include "memory/ledger.h"
#include "weights/pack_directory.h"

namespace convene::cli {
namespace {

class Quantize : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "MODEL", source_, "Directory of a Hugging Face checkpoint");
    AddPath(app, "--out", target_, "Where to write; must not exist or be empty")
        ->type_name("DIR")
        ->check(NewDirectory())
        ->required();
    app.add_option("--weights", weights_, "Format: int8 (default), int4, bf16 or f32")
        ->check(CLI::IsMember({"int8", "int4", "bf16", "f32"}))
        ->type_name("FORMAT");
    AddInt4GroupOption(app, group_);
    AddThreadsOption(app, num_threads_);
  }

  Status Run() override {
    if (group_ && weights_ != "int4") {
      return Error{"--int4-group goes with int4 weights; leave it out, or use --weights int4"};
    }
    const auto start = std::chrono::steady_clock::now();
    const Result<engine::ModelSource> source = engine::ModelSource::Open(source_);
    if (!source) return source.error();
    const checkpoint::Checkpoint* checkpoint = source->checkpoint();
    if (checkpoint == nullptr) {
      return Error{fmt::format(
          "{} is packed already; give the directory of the original checkpoint", source_)};
    }
    const weights::WeightFormats formats{.matrices = *kernels::WeightFormatFromName(weights_),
                                         .group = group_.value_or(32)};
    Result<std::vector<int>> cpus =
        hardware::CpusForThisRank(LocalRankFromLauncher(), num_threads_);
    if (!cpus) return cpus.error();
    Result<memory::Tier> tier = memory::HostTier(/*num_ranks=*/1, *cpus);
    if (!tier) return tier.error();
    memory::Ledger ledger(*std::move(tier));
    hardware::ThreadPool pool(*std::move(cpus));
    if (const Status started = pool.started(); !started) return started.error();
    LoadMessages messages;
    const Result<uint64_t> packed = weights::PackDirectory(
        *checkpoint, formats, {.directory = target_}, pool, ledger, messages.observer().packing);
    messages.Finish();
    if (!packed) return packed.error();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    PrintNote("quantize: {} weights, {} (stored {}) in {:.1f} s -> {}\n", weights_,
              FormatBytes(*packed), FormatBytes(checkpoint->size_bytes()), elapsed.count(),
              target_);
    return {};
  }

 private:
  std::string source_;
  std::string target_;
  std::string weights_ = "int8";
  std::optional<int> group_;
  std::optional<int> num_threads_;
};

}  // namespace

std::unique_ptr<Command> MakeQuantize() { return std::make_unique<Quantize>(); }

}  // namespace convene::cli
