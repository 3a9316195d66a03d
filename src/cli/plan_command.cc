#include "cli/plan_command.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/profile_option.h"
#include "engine/load_options.h"
#include "plan/plan.h"

namespace convene::cli {
namespace {

using planner::Candidate;

bool OptionsSay(const plan::Plan& plan) {
  return plan.lines.empty() && plan.pipeline.cuts.empty() && plan.cut_from_tokens == 0 &&
         !plan.spilled_kv;
}

std::string PipelineOptions(const plan::Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  std::string words;
  if (plan.layout.disaggregates) {
    const plan::DisaggregatedStrategy chosen = plan::StrategyOf(pipeline);
    words += fmt::format(" --strategy {}", plan::Name(chosen));
    if (pipeline.order != strategy::AttentionOrder::kAsas) {
      words += fmt::format(" --order {}", plan::Name(pipeline.order));
    }
    // Two are usual there.
    if (chosen != plan::DisaggregatedStrategy::kNaive && pipeline.micro_batches == 1) {
      words += " --micro-batches 1";
    }
  }
  if (!pipeline.overlap) words += " --no-overlap";
  if (pipeline.chunks > 1) {
    words += fmt::format(" --pipeline {}:{}", pipeline.chunks,
                         pipeline.cut == strategy::ChunkCut::kTokens ? "tokens" : "experts");
  }
  if (pipeline.micro_batches > 1)
    words += fmt::format(" --micro-batches {}", pipeline.micro_batches);
  if (plan.comm_budget > 0) words += fmt::format(" --comm-budget {}", plan.comm_budget);
  return words;
}

std::string DecodeOptions(const plan::Plan& plan) {
  if (!plan.decode) return "";
  std::string words = " --decode-experts " + plan::ExpertsText(*plan.decode);
  if (plan.loads_experts()) words += " --transition int4";
  if (plan.phase_change.epoch_steps > 0) {
    words += fmt::format(" --epoch-steps {}", plan.phase_change.epoch_steps);
  }
  if (plan.phase_change.keeps_both) words += " --keep both";
  if (plan.phase_change.prompts_join) words += " --prompts join";
  return words;
}

// What prices depend on and a plan's file says itself, unless requests arrive at a rate.
std::string StepOptions(const PlanReport& report, const Candidate& chosen) {
  const int together = chosen.figures ? chosen.figures->batch : report.question.workload.batch;
  const int tokens = chosen.plan.step_tokens_for(together, report.question.step_tokens);
  std::string words = fmt::format(" --max-batch {}", std::min(together, plan::kMostSequences));
  if (tokens != engine::LoadOptions{}.max_step_tokens) words += fmt::format(" --chunk {}", tokens);
  return words;
}

}  // namespace

std::string ShellWord(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string CommandOf(const PlanReport& report) {
  return CommandOf(report, report.chosen(), report.plan_path);
}

std::string CommandOf(const PlanReport& report, const Candidate& chosen,
                      const std::string& plan_path) {
  if (report.costs.device && chosen.setup.num_ranks > 1) return "";
  if (plan_path.empty() && !OptionsSay(chosen.plan)) return "";
  const int num_ranks = chosen.setup.num_ranks;
  // convene divides a host's cores among its ranks itself; one process lays its weights on all
  // memory nodes in turn.
  std::string line = "convene";
  if (num_ranks > 1) {
    // A rank of a preset is a whole host.
    const bool is_preset = report.costs.steps.empty() && !report.costs.machine.cpu_name.empty();
    const char* const place = is_preset ? " --map-by ppr:1:node" : "";
    line = fmt::format("mpirun -n {}{} --bind-to none convene", num_ranks, place);
  }
  const bool serves = report.use == PlanUse::kServe;
  line += fmt::format(" {} {}", serves ? "serve" : "batch", ShellWord(report.model));
  if (!plan_path.empty()) {
    line += " --plan " + ShellWord(plan_path) + (report.costs.device ? " --device cuda" : "");
  } else {
    line += " --weights " + chosen.setup.weights;
    if (chosen.setup.int8_kv) line += " --kv-cache int8";
    // A GPU has no threads that could be asked for.
    line += report.costs.device ? " --device cuda"
                                : fmt::format(" --threads {}", chosen.setup.num_threads);
    if (num_ranks > 1) {
      line += fmt::format(" --layout {} --wire {}", ShellWord(plan::ToText(chosen.plan.layout)),
                          plan::Name(chosen.plan.wire));
      line += PipelineOptions(chosen.plan) + DecodeOptions(chosen.plan);
    }
  }
  if (plan_path.empty() || report.question.workload.arrival_rate > 0) {
    line += StepOptions(report, chosen);
  }
  // Unlike ranks have what each of them has.
  const bool are_unlike = num_ranks == static_cast<int>(report.question.rank_memory.size());
  if (chosen.plan.experts_in_memory && !are_unlike) {
    constexpr uint64_t kMib = uint64_t{1} << 20;
    // What the plan was made for, and the program.
    const bool has_program = !report.costs.device;
    const uint64_t budget =
        chosen.memory_limit + (has_program ? ProgramBytes(report.question.num_ranks) : 0);
    const bool is_whole = budget % kMib == 0;
    line += fmt::format(" --memory-budget {}{}", budget / (is_whole ? kMib : 1),
                        is_whole ? "MiB" : "B");
  } else if (num_ranks == 1 && !report.costs.device) {
    line += " --numa interleave";
  }
  return serves ? line : line + " --input requests.jsonl --output answers.jsonl";
}

std::string HowToRun(const PlanReport& report) {
  if (report.costs.device && report.chosen().setup.num_ranks > 1) {
    return "nothing yet: this version computes on one GPU (--device cuda), or on CPUs";
  }
  const std::string command = CommandOf(report);
  if (!command.empty()) return command;
  return "no options say all of this plan: write it with --out FILE, and run it with --plan FILE";
}

}  // namespace convene::cli
