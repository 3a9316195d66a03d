#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/quote.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/describe_gpu.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
#include "cli/read_trace.h"
#include "cli/text_table.h"
#include "cli/value_options.h"
#include "comm/agree.h"
#include "cost/doubtful_costs.h"
#include "cost/machine_profile.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/measure_machine.h"
#include "evaluate/measure_operators.h"
#include "evaluate/measure_steps.h"
#include "evaluate/refine_profile.h"
#include "kernels/choose_kernels.h"
#include "kernels/streaming_choice.h"

namespace convene::cli {
namespace {

using Clock = std::chrono::steady_clock;

// "none" by itself is none. Error: a name that is of no format.
Result<std::vector<kernels::WeightFormat>> FormatsToMeasure(const std::vector<std::string>& names) {
  std::vector<kernels::WeightFormat> formats;
  if (names == std::vector<std::string>{"none"}) return formats;
  for (const std::string& name : names) {
    const auto format = kernels::WeightFormatFromName(name);
    if (!format) {
      return Error{fmt::format(
          "{} is no format of weights; write some of f32, bf16, int8 and int4 with commas, or none",
          Printable(name))};
    }
    formats.push_back(*format);
  }
  return formats;
}

// For all that is measured: less than the three and four minutes that people are told, since the
// last steps may begin just before.
constexpr double kSecondsAlone = 160;
constexpr double kSecondsOfRanks = 215;

std::string DescribeStreaming(const std::vector<int>& measured) {
  const auto choice = kernels::StreamingChoice::FromNumbers(measured);
  if (!choice) return "not measured";
  const auto usual = kernels::StreamingChoice::OfCpu();
  std::vector<std::string> others;
  for (const kernels::WeightFormat format : kernels::kStreamingFormats) {
    std::vector<int> rows_of_others;
    for (const int rows : kernels::kStreamingRows) {
      if (choice->For(format, rows) != usual.For(format, rows)) rows_of_others.push_back(rows);
    }
    if (rows_of_others.empty()) continue;
    others.push_back(
        fmt::format("{} with {} rows", kernels::Name(format), fmt::join(rows_of_others, ", ")));
  }
  return others.empty() ? "read as is usual on CPUs of this kind"
                        : fmt::format("read otherwise than is usual on CPUs of this kind: {}",
                                      fmt::join(others, "; "));
}

std::string Describe(const hardware::Profile& profile) {
  std::string text =
      fmt::format("{}, {} on CPU{} {}, {}\n", hardware::NameOf(profile.cpu()),
                  FormatCount(profile.cpus.size(), "thread"), profile.cpus.size() == 1 ? "" : "s",
                  fmt::join(profile.cpus, ","), profile.isa);
  text += fmt::format("dot products  float32  {:10.1f} GFLOP/s\n", profile.f32_gflops);
  text += fmt::format("              bf16     {:10.1f} GFLOP/s\n", profile.bf16_gflops);
  text += fmt::format("              int8     {:10.1f} Gop/s\n", profile.int8_gops);
  text += fmt::format("memory        read     {:10.1f} GB/s    {:.0f} % in huge pages\n",
                      profile.read_gbps, 100 * profile.huge_page_share);
  if (profile.disk_gbps > 0) {
    text += fmt::format("disk          read     {:10.2f} GB/s    {}{}\n", profile.disk_gbps,
                        profile.disk_directory,
                        profile.disk_direct ? "" : ", perhaps from the page cache");
    if (profile.disk_gbps_beside > 0) {
      text += fmt::format(
          "              beside computation {:.2f} GB/s, which take {:.0f} % of a core\n",
          profile.disk_gbps_beside,
          100 * profile.disk_core_seconds_per_gb * profile.disk_gbps_beside);
    }
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

std::string DescribeSetup(const cost::StepCosts& costs) {
  return fmt::format(
      "{} of {} with weights in {}", FormatCount(static_cast<uint64_t>(costs.num_ranks), "rank"),
      FormatCount(static_cast<uint64_t>(costs.num_threads), "thread"), costs.weights);
}

std::string DescribeCosts(const cost::StepCosts& costs) {
  TextTable table;
  // Of the line the same points are held out as of the costs.
  table.AddRow({"kind of task", "points", "held out: median error", "95 %", "bias", "R²",
                "90 % within", "held out of a line: R²", "median error"});
  table.AddRule();
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const auto add = [&](std::string name, const cost::HeldOut& held_out) {
    table.AddRow({std::move(name), fmt::to_string(held_out.num_points),
                  percent(held_out.median_error), percent(held_out.p95_error),
                  fmt::format("{:+.1f} %", 100 * held_out.bias), fmt::format("{:.4f}", held_out.r2),
                  fmt::format("{:+.1f} to {:+.1f} %", 100 * held_out.low, 100 * held_out.high),
                  held_out.has_line() ? fmt::format("{:.4f}", held_out.line_r2) : "-",
                  held_out.has_line() ? percent(held_out.line_median_error) : "-"});
  };
  for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    if (!costs.held_out[kind]) continue;
    add(std::string(schedule::Name(static_cast<schedule::TaskKind>(kind))), *costs.held_out[kind]);
  }
  if (costs.int8_attention_held_out) {
    add("attention, int8 KV cache", *costs.int8_attention_held_out);
  }
  if (costs.exchange_held_out) add("all exchanges", *costs.exchange_held_out);
  if (costs.overlapped_held_out) add("steps with overlap", *costs.overlapped_held_out);
  std::string text = fmt::format(
      "\nsteps on {}, memory {:.1f} GB/s each, {:.2f} ms besides tasks\n{}", DescribeSetup(costs),
      costs.reference.read_bytes_per_second / 1e9, 1e3 * costs.step_once, table.Format());
  text += fmt::format(
      "whole steps of models that were left out: 90 % within {:.2f} times what these errors say\n",
      costs.interval_stretch);
  if (costs.cached_weight_bytes > 0) {
    std::vector<std::string> kinds;
    for (size_t kind = 0; kind < costs.tasks.size(); ++kind) {
      if (!costs.cached_tasks[kind]) continue;
      const double cached = costs.cached_tasks[kind]->per_weight_byte.value.front();
      const double usual = costs.tasks[kind]->per_weight_byte.value.front();
      // Where products take as long as their operations, nothing is left for bytes.
      constexpr double kMost = 20;
      const bool is_free = usual > kMost * cached;
      kinds.push_back(fmt::format(
          "{} {}", schedule::Name(static_cast<schedule::TaskKind>(kind)),
          is_free ? fmt::format("over {:.0f}", kMost) : fmt::format("{:.2g}", usual / cached)));
    }
    text += fmt::format(
        "weights up to {} stay in the last-level cache, and are read so many times as fast: {}\n",
        FormatBytes(static_cast<uint64_t>(costs.cached_weight_bytes)), fmt::join(kinds, ", "));
  }
  constexpr auto kLoads = static_cast<size_t>(schedule::TaskKind::kLoadExperts);
  if (costs.tasks[kLoads] && costs.load_beside) {
    const auto& alone = costs.tasks[kLoads]->per_weight_byte.value;
    const auto& beside = costs.load_beside->per_weight_byte.value;
    text += fmt::format(
        "loads         {:.2f} GB/s copied and {:.2f} made of int4 by a thread; beside computation "
        "they take {:.2f} and {:.2f} times their time of cores\n",
        1e-9 / alone.front(), 1e-9 / (alone.back() - alone.front()), beside.front() / alone.front(),
        (beside.back() - beside.front()) / (alone.back() - alone.front()));
  }
  if (costs.num_ranks > 1) {
    const double per_byte = costs.exchange.lasting_seconds_per_byte();
    text +=
        fmt::format("exchanges     {:.0f} µs and {:.1f} MB/s; {:.2f} ns of a core for each byte\n",
                    1e6 * costs.exchange.once(), per_byte > 0 ? 1e-6 / per_byte : 0,
                    1e9 * costs.exchange.core_seconds_per_byte);
  }
  return text;
}

// What stays in the file beside what was measured. Empty: nothing.
std::string WordsOfRest(const cost::MachineProfile& measured, const cost::MachineProfile& kept) {
  std::vector<std::string> rest;
  for (const cost::StepCosts& costs : kept.steps) {
    if (measured.CostsOf(costs.num_ranks, costs.num_threads, costs.weights) != nullptr) continue;
    rest.push_back("steps on " + DescribeSetup(costs));
  }
  for (const auto& [name, model] : kept.operators) {
    if (!measured.operators.contains(name)) rest.push_back(name);
  }
  return fmt::format("{}", fmt::join(rest, ", "));
}

std::string DescribeRefinement(const evaluate::RefinedCosts& refined) {
  TextTable table;
  table.AddRow({"kind of task", "tasks", "measured / predicted", "error before", "after"});
  table.AddRule();
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  bool is_any_left = false;
  const auto add = [&](std::string_view name, const std::optional<cost::KindRefinement>& found) {
    if (!found) return;
    table.AddRow({std::string(name), fmt::to_string(found->num_tasks),
                  fmt::format("{:.3f}", found->factor), percent(found->error_before),
                  found->is_used ? percent(found->error_after) : "left as it was"});
    is_any_left |= !found->is_used;
  };
  const cost::Refinement& refinement = refined.refinement;
  for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    add(schedule::Name(static_cast<schedule::TaskKind>(kind)), refinement.tasks[kind]);
  }
  add("exchange", refinement.exchange);
  std::string notes;
  if (refinement.fits_caches) {
    notes +=
        "their weights fit into the caches, which those of larger models do not: costs of tasks "
        "learn nothing from them\n";
  }
  if (is_any_left) {
    notes += fmt::format(
        "a kind is left as it was where there are fewer than {} tasks of it, or where what the "
        "other steps say of it does not lower the errors in each: a trace has one step of each "
        "kind, so give those of several runs together (--from-trace A.json B.json ...)\n",
        cost::kFewestRefiningTasks);
  }
  return fmt::format("\nsteps on {}, refined by {} that ran\n{}{}", DescribeSetup(refinement.costs),
                     FormatCount(static_cast<uint64_t>(refined.num_steps), "step"), table.Format(),
                     notes);
}

class Measure : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddThreadsOption(app, num_threads_);
    AddNumber(app, "--seconds", options_.budget_s, {0.01, 60.0},
              "Time for each of the eight measurements, 0.01 to 60 (default: 1); the last of them, "
              "how panels of weights are best read, takes three times as long")
        ->type_name("S");
    AddPath(app, "--disk", options_.disk_directory,
            "Directory whose disk is measured, by its largest file if that is large; must exist "
            "(default: where the profile is kept)")
        ->type_name("DIR");
    AddPath(app, "-o,--out", out_path_,
            "Write to this file, beside what it has of this machine, and leave the kept one alone")
        ->check(
            NoStandardOutput("a profile is a file; --json - writes its figures to standard output"))
        ->check(WritableFile());
    AddWords(app, "--steps", step_formats_,
             "Formats of weights whose steps are measured: some of f32, bf16, int8 and int4, or "
             "none (default: bf16,int8,int4)")
        ->check(ListParsedBy(FormatsToMeasure))
        ->type_name("FORMATS");
    CLI::Option* traces =
        app.add_option(
               "--from-trace", traces_,
               "Measure nothing: refine the profile by traces of steps that ran here (--trace)")
            ->type_name("FILE.json ...")
            ->expected(1, 1000)
            ->check(CLI::Validator(
                [](const std::string& path) {
                  return path.empty() ? "the path of a trace is empty" : std::string();
                },
                ""));
    for (const char* measured : {"--threads", "--seconds", "--disk", "--steps"}) {
      traces->excludes(measured);
    }
    AddPath(app, "--profile", profile_path_,
            "The profile to refine with --from-trace (default: the kept one)")
        ->type_name("FILE")
        ->needs(traces);
    AddJsonOption(app, json_path_);
  }

  bool runs_on_all_ranks() const override { return true; }

  Status Run() override {
    options_.disk_is_required = !options_.disk_directory.empty();
    if (!options_.disk_is_required) options_.disk_directory = CacheDirectory();
    if (!traces_.empty()) return speaks() ? Refine() : Status();
    const std::vector<kernels::WeightFormat> formats = *FormatsToMeasure(step_formats_);
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
    last_level_cache_bytes_ = topology->last_level_cache_bytes();
    hardware::ThreadPool pool(*std::move(cpus));
    if (const Status started = comm::AgreeOnSuccess(*ranks(), pool.started()); !started) {
      return started;
    }
    const std::string quota = cost::WordsOfQuota(ranks()->rank(), pool.size(), topology->cpu_quota);
    if (!quota.empty()) PrintNote("{}\n", quota);
    cost::MachineProfile profile;
    if (Status measured = MeasureRankZero(*topology, pool, *isa, &profile); !measured) {
      return measured;
    }
    if (Status done = MeasureOperators(pool, &profile); !done) return done;
    const auto streaming = evaluate::StreamingWhileMeasuring(
        *ranks(), profile, out_path_.empty() ? hardware::ProfilePath() : out_path_,
        {.cpu = topology->cpu, .isa = (*kernels)->name, .cpus = pool.cpus()});
    kernels::KernelSet of_steps = **kernels;
    if (streaming) of_steps.streaming = &*streaming;
    for (size_t i = 0; i < formats.size(); ++i) {
      const double left = (ranks()->size() == 1 ? kSecondsAlone : kSecondsOfRanks) - SecondsSoFar();
      const double seconds = std::max(1.0, left / static_cast<double>(formats.size() - i));
      if (Status done = MeasureFormat(formats[i], pool, of_steps, seconds, &profile); !done) {
        return done;
      }
    }
    return speaks() ? Keep(profile) : Status();
  }

 private:
  // On rank 0 alone: nothing runs.
  Status Refine() const {
    const std::string from = profile_path_.empty() ? hardware::ProfilePath() : profile_path_;
    Result<cost::MachineProfile> profile = evaluate::LoadMachineProfile(from);
    if (!profile) return profile.error();
    std::vector<drawing::Trace> traces;
    std::set<std::filesystem::path> seen;
    for (const std::string& path : traces_) {
      std::error_code ignored;  // reading it says so
      if (!seen.insert(std::filesystem::weakly_canonical(path, ignored)).second) {
        return Error{fmt::format("{} is given twice, and its steps would count twice", path)};
      }
      Result<drawing::Trace> trace = ReadTrace(path);
      if (!trace) return trace.error();
      traces.push_back(*std::move(trace));
    }
    const auto refined = evaluate::RefineProfile(traces, &*profile);
    if (!refined) return refined.error();
    for (const evaluate::RefinedCosts& each : *refined) {
      if (Status told = WriteReport({json_path_}, DescribeRefinement(each)); !told) return told;
    }
    return Save(*profile, out_path_.empty() ? from : out_path_);
  }

  bool speaks() const { return ranks()->rank() == 0; }

  // The machine as one rank has it; the others wait, so that it is alone.
  Status MeasureRankZero(const hardware::Topology& topology, hardware::ThreadPool& pool,
                         hardware::Isa isa, cost::MachineProfile* profile) {
    Status measured;
    if (speaks()) {
      Result<hardware::Profile> machine = evaluate::MeasureMachine(topology, pool, isa, options_);
      measured = machine ? Status() : Status(machine.error());
      if (machine) {
        profile->machine = *std::move(machine);
        std::vector<hardware::GpuProfile>& gpus = profile->machine.gpus;
        gpus = evaluate::MeasureGpus(pool, options_.budget_s);
        std::string text = Describe(profile->machine);
        for (const hardware::GpuProfile& gpu : gpus) text += DescribeMeasured(gpu);
        measured = WriteReport({json_path_}, text);
      }
    }
    return comm::AgreeOnSuccess(*ranks(), measured);
  }

  Status MeasureOperators(hardware::ThreadPool& pool, cost::MachineProfile* profile) {
    Status measured;
    if (speaks()) {
      const hardware::Profile& machine = profile->machine;
      auto models =
          evaluate::MeasureOperators(pool, {.budget_s = options_.budget_s,
                                            .disk_directory = options_.disk_directory,
                                            .read_bytes_per_second = 1e9 * machine.read_gbps,
                                            .disk_bytes_per_second = 1e9 * machine.disk_gbps,
                                            .last_level_cache_bytes = last_level_cache_bytes_});
      measured = models ? Status() : Status(models.error());
      if (models) profile->operators = *std::move(models);
    }
    if (Status all = comm::AgreeOnSuccess(*ranks(), measured); !all) return all;
    if (ranks()->size() > 1) {
      auto messages = evaluate::MeasureMessages(*ranks(), options_.budget_s);
      measured = messages ? Status() : Status(messages.error());
      if (messages) profile->operators.merge(*messages);
      if (Status all = comm::AgreeOnSuccess(*ranks(), measured); !all) return all;
    }
    if (!speaks()) return {};
    std::string text = "\n";
    for (const auto& [name, model] : profile->operators) text += cost::Describe(model) + "\n";
    return WriteReport({json_path_}, text);
  }

  Status MeasureFormat(kernels::WeightFormat format, hardware::ThreadPool& pool,
                       const kernels::KernelSet& kernels, double seconds,
                       cost::MachineProfile* profile) {
    if (speaks()) {
      PrintNote("steps with weights in {}: about {:.0f} s at most\n", kernels::Name(format),
                seconds);
    }
    const bool one_host = LocalRankFromLauncher().count == ranks()->size();
    const Result<cost::StepCosts> costs =
        evaluate::MeasureSteps(*ranks(), pool, kernels,
                               {.weights = format,
                                .wire = one_host ? comm::WireFormat::kF32 : comm::WireFormat::kBf16,
                                .seconds = seconds,
                                .last_level_cache_bytes = last_level_cache_bytes_});
    if (!costs) return costs.error();
    if (!speaks()) return {};
    profile->steps.push_back(*costs);
    return WriteReport({json_path_}, DescribeCosts(*costs));
  }

  Status Keep(const cost::MachineProfile& profile) const {
    for (const std::string& reason : hardware::UnsupportedIsas()) {
      PrintNote("not usable here: {}\n", reason);
    }
    const std::string path = out_path_.empty() ? hardware::ProfilePath() : out_path_;
    const Result<cost::MachineProfile> before = evaluate::LoadMachineProfile(path);
    if (before) {
      const std::string why =
          evaluate::WhyAnotherMachine(before->machine, profile.machine.cpu(), profile.machine.isa);
      if (!why.empty()) PrintNote("what was in {} is replaced: {}\n", path, why);
    }
    const cost::MachineProfile kept = evaluate::WithKept(profile, path);
    if (Status saved = Save(kept, path); !saved) return saved;
    if (const std::string rest = WordsOfRest(profile, kept); !rest.empty()) {
      PrintNote("what it has besides stays there as it was: {}\n", rest);
    }
    const std::string doubt = cost::WordsOfDoubt(profile.steps);
    if (!doubt.empty()) PrintNote("{}\n", doubt);
    return {};
  }

  Status Save(const cost::MachineProfile& profile, const std::string& path) const {
    const nlohmann::ordered_json json = cost::ToJson(profile);
    if (const Status saved = hardware::SaveProfileJson(json, path); !saved) return saved;
    PrintNote("kept in {}\n", path);
    return WriteJson(json_path_, json);
  }

  double SecondsSoFar() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  Clock::time_point start_ = Clock::now();
  std::optional<int> num_threads_;
  evaluate::MeasureOptions options_;
  std::string json_path_;
  std::string out_path_;
  std::vector<std::string> traces_;
  std::string profile_path_;
  uint64_t last_level_cache_bytes_ = 0;
  std::vector<std::string> step_formats_ = {"bf16", "int8", "int4"};
};

}  // namespace

std::unique_ptr<Command> MakeMeasure() { return std::make_unique<Measure>(); }

}  // namespace convene::cli
