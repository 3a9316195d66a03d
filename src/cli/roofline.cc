#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "checkpoint/model_files.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/output.h"
#include "cli/profile_option.h"
#include "cli/roofline_report.h"
#include "cli/value_options.h"
#include "engine/plan_question.h"
#include "evaluate/inspection.h"
#include "hardware/memory_status.h"
#include "hardware/profile.h"
#include "planner/model_roofline.h"
#include "runtime/formats.h"
#include "weights/packed_directory.h"
#include "weights/weight_layout.h"

namespace convene::cli {
namespace {

constexpr double kBytesOfGibibyte = double{1 << 30};
constexpr int kMostTokens = 1 << 24;

CLI::Validator OneOf(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](const std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("{} is none of {}", Quote(text), fmt::join(words, ", "));
      },
      "");
}

// "1024:557.8"; nothing where it is none.
std::optional<MeasuredStep> ParseMeasuredStep(const std::string& text) {
  MeasuredStep step;
  const char* const end = text.data() + text.size();
  const auto [colon, no_batch] = std::from_chars(text.data(), end, step.batch);
  if (no_batch != std::errc() || colon == end || *colon != ':' || step.batch < 1) return {};
  const auto [last, no_rate] = std::from_chars(colon + 1, end, step.tokens_per_second);
  if (no_rate != std::errc() || last != end || !(step.tokens_per_second > 0) ||
      !std::isfinite(step.tokens_per_second)) {
    return {};
  }
  return step;
}

class RooflineCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "MODEL", model_, "Model directory, or a bare config.json");
    AddMachineFileOption(app, "--profile", profile_,
                         "The machine: a file of convene measure, or a preset with or without a "
                         "GPU (default: what was kept of this one)");
    AddMachineFileOption(app, "--host", host_,
                         "The host of a GPU of whose host the profile knows nothing");
    AddDeviceOption(app, gpu_,
                    "Of a profile that convene measure made, what computes: cpu, or a GPU that it "
                    "measured, as cuda or cuda:1 (default: cpu)");
    AddWords(app, "--weights", weights_,
             "Formats of weights: bf16, int8, int4, f32; of several the policy is the fastest one "
             "(default: bf16, or that of weights which are packed)")
        ->type_name("FORMATS");
    app.add_option("--kv-cache", kv_cache_, "Of keys and values: bf16, int8 (default: bf16)")
        ->type_name("FORMAT")
        ->check(OneOf({"bf16", "int8"}));
    AddNumber(app, "--prompt-tokens", prompt_tokens_, {1, kMostTokens},
              "Of each sequence (default: 512)");
    AddNumber(app, "--gen-tokens", gen_tokens_, {1, kMostTokens}, "Of each answer (default: 64)");
    AddNumber(app, "--context", context_, {1, kMostTokens},
              "Tokens that attention sees (default: the prompt and half of the answer)");
    AddNumber(app, "--batch", batch_, {1, kMostTokens},
              "Sequences of a step (default: the policy's)");
    AddNumber(app, "--micro-batch", micro_batch_, {1, kMostTokens},
              "Sequences that are computed at once (default: the policy's)");
    AddNumber(app, "--sequences", sequences_, {1, 1 << 16},
              "Sequences that there are for a step (default: 4096)");
    AddNumber(app, "--memory", memory_, {1e-3, 1e6},
              "Of the fast tier (default: the device's, or what is free here)")
        ->type_name("GIB");
    AddNumber(app, "--host-memory", host_memory_, {1e-3, 1e6}, "Of a GPU's host")->type_name("GIB");
    AddNumber(app, "--disk-rate", disk_rate_, {1e-6, 1e6},
              "Of reading the disk (default: the profile's)")
        ->type_name("GB/S");
    AddWords(app, "--measured", measured_,
             "Steps that were measured, to be drawn and held against the rooflines: sequences and "
             "tokens per second, as 1024:557.8")
        ->type_name("N:TOKENS/S");
    AddPath(app, "--svg", svg_path_, "Draw the rooflines")
        ->type_name("FILE.svg")
        ->check(WritableFile());
    AddJsonOption(app, json_path_);
    app.parse_complete_callback([this] { CheckOptions(); });
  }

  bool refuses_ranks() const override { return true; }

  Status Run() override {
    const Result<model::ModelSpec> spec = evaluate::SpecAsLoaded(model_);
    if (!spec) return spec.error();
    if (spec->has_encoder()) {
      return Error{
          "models with an encoder have no roofline here: its policies are of steps of a decoder "
          "alone, and what an encoder reads and computes is not counted; convene bench "
          "--memory-budget measures such a model with its experts on a disk"};
    }
    if (Status known = ChooseFormat(); !known) return known;
    const Result<cost::MachineProfile> machine = ReadMachine();
    if (!machine) return machine.error();
    const Result<std::vector<cost::MemoryTier>> tiers = ReadTiers(*machine, weights_.front());
    if (!tiers) return tiers.error();
    const planner::OffloadModel model = planner::OffloadModelOf(*spec);
    Result<RooflineReport> report = Answer(*machine, *tiers, model);
    if (!report) return report.error();
    if (Status told = WriteReport({json_path_, svg_path_}, DescribeRoofline(*report)); !told)
      return told;
    if (!svg_path_.empty()) {
      const std::vector<drawing::RooflineChart> charts = ChartsOf(*report, model);
      if (Status drawn = WriteText(svg_path_, drawing::RooflineSvg(charts)); !drawn) return drawn;
    }
    if (Status written = WriteJson(json_path_, ToJson(*report)); !written) return written;
    if (!report->policy) return ResourceExhausted(report->no_policy);
    return {};
  }

 private:
  static void AddMachineFileOption(CLI::App& app, const char* name, std::string& path,
                                   const char* description) {
    AddPath(app, name, path, description)->type_name("FILE|PRESET");
  }

  void CheckOptions() const {
    const std::vector<std::string> known = {"bf16", "int8", "int4", "f32"};
    for (const std::string& format : weights_) {
      if (std::find(known.begin(), known.end(), format) != known.end()) continue;
      throw CLI::ValidationError(
          fmt::format("--weights: {} is none of {}", Quote(format), fmt::join(known, ", ")));
    }
    for (const std::string& text : measured_) {
      if (!ParseMeasuredStep(text)) {
        throw CLI::ValidationError(fmt::format(
            "--measured: {} is no number of sequences and rate, as 1024:557.8", Quote(text)));
      }
    }
    if (batch_ && micro_batch_ && *micro_batch_ > *batch_) {
      throw CLI::ValidationError(fmt::format("a micro-batch of {} is larger than the batch of {}",
                                             *micro_batch_, *batch_));
    }
    if (!batch_ && micro_batch_ && *micro_batch_ > sequences_) {
      throw CLI::ValidationError(
          fmt::format("a micro-batch of {} is larger than the {} sequences that there are: raise "
                      "--sequences, or lower --micro-batch",
                      *micro_batch_, sequences_));
    }
  }

  // Where no --weights say it: that of packed weights is the only one in which they can be run.
  Status ChooseFormat() {
    if (!weights_.empty()) return {};
    weights_ = {"bf16"};
    if (!weights::IsPackedDirectory(model_)) return {};
    const Result<weights::PackedDirectory> packed = weights::OpenPackedDirectory(model_);
    if (!packed) return packed.error();
    weights_ = {std::string(kernels::Name(packed->formats.matrices))};
    return {};
  }

  // With the host of --host, and the disk's rate of --disk-rate.
  Result<cost::MachineProfile> ReadMachine() const {
    Result<cost::MachineProfile> machine = FindProfile(profile_, 1);
    if (!machine) return machine.error();
    if (gpu_) {
      const std::vector<hardware::GpuProfile>& gpus = machine->machine.gpus;
      const auto found = std::ranges::find(gpus, *gpu_, &hardware::GpuProfile::index);
      if (found == gpus.end()) {
        return Error{fmt::format(
            "the profile has no measured GPU {}: take cpu, or measure where the GPU is, with "
            "convene measure and a convene that was built with CUDA",
            *gpu_)};
      }
      machine->device = cost::FiguresOf(*found);
    }
    if (!host_.empty()) {
      if (!machine->device) {
        return Error{"--host is for profiles of a GPU; this one is of a host itself"};
      }
      const Result<cost::MachineProfile> host = FindProfile(host_, 1);
      if (!host) return host.error();
      machine->machine = host->machine;
      machine->host_memory_bytes = host->host_memory_bytes;
    }
    if (host_memory_) {
      if (!machine->device) {
        return Error{"--host-memory is for profiles of a GPU; --memory is that of a host itself"};
      }
      machine->host_memory_bytes = static_cast<uint64_t>(*host_memory_ * kBytesOfGibibyte);
    }
    if (disk_rate_) machine->machine.disk_gbps = *disk_rate_;
    return machine;
  }

  Result<std::vector<cost::MemoryTier>> ReadTiers(const cost::MachineProfile& machine,
                                                  const std::string& format) const {
    double bytes = memory_.value_or(0) * kBytesOfGibibyte;
    if (bytes <= 0 && !machine.device && machine.host_memory_bytes == 0) {
      const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
      if (!available) return available.error();
      bytes = static_cast<double>(available->bytes);
    }
    Result<std::vector<cost::MemoryTier>> tiers = cost::TiersOf(machine, format, bytes);
    if (tiers && !(tiers->front().bytes > 0)) {
      return Error{fmt::format("the profile does not say how much memory {} has: give --memory GIB",
                               tiers->front().name)};
    }
    return tiers;
  }

  planner::OffloadFormat FormatOf(const std::string& name,
                                  const std::vector<cost::MemoryTier>& tiers) const {
    const auto format = kernels::WeightFormatFromName(name);
    const double bytes = weights::BytesPerWeight(runtime::DefaultFormats(*format).weights);
    return {.name = name,
            .weight_bytes = bytes,
            .resident_bytes = bytes,
            .fast_flops = tiers[0].flops.value_or(0),
            .slow_flops = tiers[1].flops.value_or(0)};
  }

  Result<planner::OffloadQuestion> Ask(const cost::MachineProfile& machine,
                                       const std::vector<cost::MemoryTier>& tiers,
                                       const planner::OffloadModel& model) const {
    planner::OffloadQuestion question{.model = model, .fast = tiers[0], .slow = tiers[1]};
    if (machine.device) question.down_bytes_per_second = tiers[1].up_bytes_per_second;
    question.prompt_tokens = prompt_tokens_;
    question.gen_tokens = gen_tokens_;
    question.kv_bytes = kv_cache_ == "int8" ? 1 : 2;
    if (!machine.device) question.most_step_tokens = 512;
    question.most_batch = batch_.value_or(sequences_);
    question.formats.clear();
    for (const std::string& name : weights_) {
      const auto of_format = cost::TiersOf(machine, name, tiers[0].bytes);
      if (!of_format) return of_format.error();
      question.formats.push_back(FormatOf(name, *of_format));
    }
    if (micro_batch_) question.micro_batches = {*micro_batch_};
    return question;
  }

  Result<RooflineReport> Answer(const cost::MachineProfile& machine,
                                const std::vector<cost::MemoryTier>& tiers,
                                const planner::OffloadModel& model) const {
    Result<planner::OffloadQuestion> question = Ask(machine, tiers, model);
    if (!question) return question.error();
    RooflineReport report{
        .model = model_,
        .profile = profile_.empty() ? hardware::ProfilePath() : profile_,
        .formats = weights_,
        .kv_cache = kv_cache_,
        .context = static_cast<double>(context_.value_or(prompt_tokens_ + gen_tokens_ / 2)),
        .pairs = {},
        .measured = {},
        .question = *std::move(question),
        .policy = {},
        .no_policy = {}};
    Result<planner::OffloadAnswer> policy = planner::SearchOffloadPolicy(report.question);
    if (policy) {
      report.policy = *std::move(policy);
    } else {
      report.no_policy = policy.error().message;
    }
    const planner::OffloadPolicy chosen =
        report.policy ? report.policy->policy : planner::OffloadPolicy{};
    report.micro_batch =
        micro_batch_.value_or(std::min(chosen.micro_batch, batch_.value_or(chosen.micro_batch)));
    report.batch = batch_.value_or(std::max(chosen.batch, report.micro_batch));
    report.format = chosen.format;
    for (const std::string& text : measured_) {
      MeasuredStep& step = report.measured.emplace_back(*ParseMeasuredStep(text));
      step.experts =
          planner::ExpertsWork(model, step.batch, std::min(step.batch, report.micro_batch),
                               report.question.formats[chosen.format].weight_bytes);
    }
    // Formats have peaks of their own.
    const auto drawn = cost::TiersOf(machine, report.weights(), tiers[0].bytes);
    if (!drawn) return drawn.error();
    for (size_t i = 0; i + 1 < drawn->size(); ++i) {
      report.pairs.push_back(PairOf(report, model, (*drawn)[i], (*drawn)[i + 1], chosen, i == 0));
    }
    return report;
  }

  // `is_first`: the tiers between which the policy chooses.
  static RooflinePair PairOf(const RooflineReport& report, const planner::OffloadModel& model,
                             const cost::MemoryTier& fast, const cost::MemoryTier& slow,
                             const planner::OffloadPolicy& chosen, bool is_first) {
    RooflinePair pair{.roofline = {fast, slow}, .operations = {}};
    const planner::OffloadFormat& format = report.question.formats[chosen.format];
    const double cache_resident = is_first ? chosen.cache_resident : 0;
    const double weights_resident = is_first ? chosen.weights_resident : 0;
    RooflineOperation attention{
        .name = "attention",
        .work = planner::AttentionWork(model, report.context, report.question.kv_bytes,
                                       cache_resident)};
    // B_i I_i = B_ji I_i / (1 - r_c).
    if (pair.roofline.BalancePoint(attention.work.fast_intensity())) {
      attention.balance_resident = std::max(0.0, 1 - pair.roofline.link() / fast.bytes_per_second);
    }
    RooflineOperation experts{.name = "experts",
                              .work = planner::ExpertsWork(model, report.batch, report.micro_batch,
                                                           format.weight_bytes, weights_resident)};
    const auto balance = pair.roofline.BalancePoint(experts.work.fast_intensity());
    if (balance) {
      experts.balance_batch = planner::BatchOfIntensity(model, balance->intensity,
                                                        format.weight_bytes, weights_resident);
    }
    pair.operations = {attention, experts};
    return pair;
  }

  std::string model_;
  std::string profile_;
  std::string host_;
  std::optional<int> gpu_;
  std::vector<std::string> measured_;
  std::vector<std::string> weights_;
  std::string kv_cache_ = "bf16";
  int prompt_tokens_ = 512;
  int gen_tokens_ = 64;
  std::optional<int> context_;
  std::optional<int> batch_;
  std::optional<int> micro_batch_;
  int sequences_ = 4096;
  std::optional<double> memory_;
  std::optional<double> host_memory_;
  std::optional<double> disk_rate_;
  std::string svg_path_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeRoofline() { return std::make_unique<RooflineCommand>(); }

}  // namespace convene::cli
