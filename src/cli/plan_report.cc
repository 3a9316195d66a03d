#include "cli/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "base/plain_number.h"
#include "base/quote.h"
#include "base/units.h"
#include "base/version.h"
#include "cli/plan_changes.h"
#include "cli/plan_command.h"
#include "cli/planned_question.h"
#include "cli/profile_option.h"
#include "cli/text_table.h"
#include "engine/load_options.h"
#include "strategy/transition.h"

namespace convene::cli {
namespace {

using cost::Interval;
using nlohmann::ordered_json;
using planner::Candidate;
using planner::PlanFigures;

std::string SignedPercent(double share) { return fmt::format("{:+.1f} %", 100 * share); }

// Of operators without residuals, as data sheets are, it is not known how far they are off.
constexpr std::string_view kNoInterval = "(its error is not known)";

std::string SecondsWithin(double seconds, const Interval& interval) {
  if (!IsKnown(interval)) return fmt::format("{}  {}", FormatSeconds(seconds), kNoInterval);
  return fmt::format("{}  ({} - {})", FormatSeconds(seconds), FormatSeconds(interval.low),
                     FormatSeconds(interval.high));
}

std::string MemoryWords(const Candidate& candidate) {
  if (candidate.memory_limit == 0) return std::string(kMemoryNotLookedAt);
  const planner::RankMemory& memory = candidate.memory;
  // Only ranks with attention have keys and values.
  const char* const role = !candidate.plan.layout.disaggregates ? ""
                           : memory.kv_bytes > 0                ? " of a rank with attention"
                                                                : " of a rank with experts";
  return fmt::format("{} of {}{}  (weights {}, KV cache {}, working memory {})",
                     FormatBytes(memory.total()), FormatBytes(candidate.memory_limit), role,
                     FormatBytes(memory.weights_bytes), FormatBytes(memory.kv_bytes),
                     FormatBytes(memory.working_bytes));
}

ordered_json IntervalToJson(const Interval& interval) { return {interval.low, interval.high}; }

plan::Plan WholePlan(const Candidate& candidate) {
  plan::Plan plan = candidate.plan;
  plan.weights = candidate.setup.weights;
  if (candidate.setup.int8_kv) plan.kv_cache = "int8";
  plan.num_threads = candidate.setup.num_threads;
  return plan;
}

ordered_json AlternativesJson(const PlanReport& report) {
  ordered_json list = ordered_json::array();
  for (const planner::Alternative& alternative : report.explanation.alternatives) {
    const Candidate& candidate = report.of(alternative);
    list.push_back({{"name", Describe(candidate)},
                    {"ranks", candidate.setup.num_ranks},
                    {"plan", plan::ToJson(WholePlan(candidate))},
                    {"slower", alternative.slower},
                    {"reason", alternative.reason},
                    {"would_win", alternative.would_win},
                    {"command", CommandOf(report, candidate, "")},
                    {"needs", candidate.needs},
                    {"changes", ChangesIn(report, candidate)},
                    {"predicted", FiguresJson(candidate)}});
  }
  return list;
}

// Of which machine the costs of the chosen setup are, and that another version measured them, or
// that they are not as they were measured.
std::string CostsWords(const PlanReport& report) {
  std::string text = report.profile;
  const std::string& cpu = report.costs.machine.cpu_name;
  if (!cpu.empty()) text += fmt::format(", of {}", Printable(cpu));
  const planner::RankSetup& setup = report.chosen().setup;
  const cost::StepCosts* costs =
      report.costs.CostsOf(setup.num_ranks, setup.num_threads, setup.weights);
  if (costs == nullptr) return text;
  if (costs->version != kVersion) {
    text += fmt::format(", measured by {}, and this is {}",
                        costs->version.empty() ? "an unknown version of convene"
                                               : "convene " + Printable(costs->version),
                        kVersion);
  }
  if (costs->learnt_from.empty()) return text;
  return text + fmt::format(", corrected by {} that ran before",
                            FormatCount(costs->learnt_from.size(), "plan"));
}

}  // namespace

namespace {

// Of the weights of decode's experts that a rank has, what it makes of its int4 backup: that share
// of any layer, on average over ranks.
double RoundedShare(const plan::Plan& plan) {
  if (!plan.loads_experts()) return 0;
  // So many experts that every division of so many ranks is even.
  model::ModelSpec spec;
  spec.hidden_size = 1;
  spec.layers.emplace_back().moe = model::MoeSpec{.num_experts = 1 << 20, .intermediate_size = 1};
  const schedule::Schedule loads = strategy::BuildLoads(
      spec, {.from = plan.layout, .to = *plan.decode, .bytes = 1, .rounded = true});
  double rounded = 0;
  double all = 0;
  for (const schedule::Task& task : loads.tasks) {
    rounded += task.work.flops.front().factor;
    all += task.work.memory_bytes.front().factor;
  }
  return all > 0 ? rounded / all : 0;
}

std::string TransitionWords(const Candidate& candidate) {
  const plan::Plan& plan = candidate.plan;
  if (plan.phase_change.keeps_both) return "none: both divisions of the experts are in memory";
  const double seconds = candidate.figures->transition_seconds;
  if (!plan.loads_experts()) {
    return fmt::format("experts move between ranks, there and back in {}; nothing is rounded",
                       FormatSeconds(seconds));
  }
  return fmt::format(
      "{:.0f} % of the experts' weights that generated tokens meet come from an int4 backup and "
      "are rounded, {} beside prompts and back (what that costs in quality: "
      "docs/results/transition.md)",
      100 * RoundedShare(plan), FormatSeconds(seconds));
}

// Numbers of ranks that the search would have looked at, had it costs of them.
std::string UnknownRanks(const PlanReport& report) {
  std::set<int> unknown;
  std::set<int> known;
  for (const Candidate& candidate : report.answer.candidates) {
    (candidate.rejected_by == "setups" ? unknown : known).insert(candidate.setup.num_ranks);
  }
  for (const int num_ranks : known) unknown.erase(num_ranks);
  if (unknown.empty()) return "";
  return fmt::format("plans for {} {}: their costs are not known (--explain says how to measure)",
                     fmt::join(unknown, ", "), *unknown.rbegin() == 1 ? "rank" : "ranks");
}

// What was asked for, or that the search would have looked at, had it costs of it.
std::vector<std::string> NotLookedAt(const PlanReport& report) {
  std::vector<std::string> plans;
  if (std::string unknown = UnknownRanks(report); !unknown.empty()) {
    plans.push_back(std::move(unknown));
  }
  const bool is_elsewhere = report.costs.steps.empty();
  if (report.question.allowed.transition && is_elsewhere && report.question.num_ranks > 1) {
    plans.emplace_back(
        "experts from an int4 backup (--allow transition): they have no price on machines that are "
        "not here");
  }
  return plans;
}

}  // namespace

std::string WorkloadWords(const planner::Workload& workload) {
  std::string text =
      fmt::format("prompts of {} and answers of {}",
                  FormatCount(static_cast<uint64_t>(workload.mean_prompt_tokens()), "token"),
                  FormatCount(static_cast<uint64_t>(workload.mean_gen_tokens()), "token"));
  if (const int64_t count = workload.requests.count(); count > 1) {
    text += fmt::format(" on average of {}", FormatCount(static_cast<uint64_t>(count), "request"));
  }
  text += workload.arrival_rate > 0
              ? fmt::format(", {} requests per second", PlainNumber(workload.arrival_rate))
          : workload.num_requests > 0
              ? ", " + FormatCount(static_cast<uint64_t>(workload.num_requests), "request")
              : fmt::format(", batches of {}", FormatCount(static_cast<uint64_t>(workload.batch)));
  if (!workload.routing.counts.empty()) text += ", routing as it was recorded";
  if (workload.routing.skew >= 0) {
    text += fmt::format(", {:.0f} % of the tokens to {} of the experts",
                        100 * workload.routing.skew, workload.routing.num_experts_skew);
  }
  return text + fmt::format("; best {}", planner::Name(workload.objective));
}

ordered_json WorkloadJson(const planner::Workload& workload) {
  ordered_json json = {{"requests", workload.requests.count()},
                       {"mean_prompt_tokens", workload.mean_prompt_tokens()},
                       {"mean_gen_tokens", workload.mean_gen_tokens()},
                       {"batch", workload.batch},
                       {"objective", planner::Name(workload.objective)}};
  if (workload.num_requests > 0) json["num_requests"] = workload.num_requests;
  if (workload.arrival_rate > 0) json["arrival_rate"] = workload.arrival_rate;
  if (workload.routing.skew >= 0) {
    json["routing"] = {{"skew", workload.routing.skew},
                       {"experts", workload.routing.num_experts_skew}};
  }
  if (!workload.routing.counts.empty()) json["routing"] = "recorded";
  return json;
}

ordered_json FiguresJson(const Candidate& candidate) {
  ordered_json json;
  if (candidate.figures) {
    const PlanFigures& figures = *candidate.figures;
    json = {{"batch", figures.batch},
            {"ttft_s", figures.ttft},
            {"ttft_s_interval", IntervalToJson(figures.ttft_interval)},
            {"time_per_token_s", figures.time_per_token},
            {"time_per_token_s_interval", IntervalToJson(figures.time_per_token_interval)},
            {"throughput_tokens_per_s", figures.throughput},
            {"throughput_tokens_per_s_interval", IntervalToJson(figures.throughput_interval)},
            {"extrapolated_share", figures.extrapolated_share},
            {"expert_imbalance", figures.imbalance},
            {"solver_s", figures.solver_seconds}};
    if (candidate.plan.changes_layout()) {
      json["transition_s"] = figures.transition_seconds;
      json["rounded_share"] = RoundedShare(candidate.plan);
    }
  }
  // Null: it was not looked at.
  json["memory_per_rank"] = nullptr;
  if (candidate.memory_limit == 0) return json;
  json["memory_per_rank"] = {{"bytes", candidate.memory.total()},
                             {"limit_bytes", candidate.memory_limit},
                             {"weights_bytes", candidate.memory.weights_bytes},
                             {"kv_bytes", candidate.memory.kv_bytes},
                             {"working_bytes", candidate.memory.working_bytes}};
  return json;
}

std::string UsualFormat(const planner::PlanQuestion& question, const planner::PlanAnswer& answer) {
  // Without --allow weights the search has marked all other formats.
  const auto is_usual = [&](const Candidate& one) {
    return one.is_ranked() && !one.changes_weights();
  };
  if (!question.allowed.weights) {
    const auto usual = std::ranges::find_if(answer.candidates, is_usual);
    if (usual != answer.candidates.end()) return usual->setup.weights;
  }
  const auto has_plan = [&](const std::string& format, bool is_paged) {
    return std::ranges::any_of(answer.candidates, [&](const Candidate& one) {
      return one.is_ranked() && one.is_allowed() && one.setup.weights == format &&
             one.plan.experts_in_memory.has_value() == is_paged;
    });
  };
  for (const std::string& format : question.formats) {
    if (has_plan(format, /*is_paged=*/false)) return format;
  }
  for (const std::string& format : std::views::reverse(question.formats)) {
    if (has_plan(format, /*is_paged=*/true)) return format;
  }
  return answer.candidates[answer.chosen].setup.weights;
}

std::vector<std::string> ChangesIn(const PlanReport& report, const Candidate& candidate) {
  return ChangesOf(report.question, candidate, UsualFormat(report.question, report.answer));
}

std::string AlternativeChanges(const PlanReport& report, const Candidate& candidate) {
  const std::vector<std::string> changes = ChangesIn(report, candidate);
  if (changes.empty()) return ChangesIn(report, report.chosen()).empty() ? "" : "nothing";
  return fmt::format("{}", fmt::join(changes, "; "));
}

std::string ReportLine(std::string_view name, std::string_view value) {
  return fmt::format("  {:<22}{}\n", name, value);
}

ReportLines FigureLines(const Candidate& candidate, const planner::Workload& workload) {
  const PlanFigures& figures = *candidate.figures;
  ReportLines lines;
  if (figures.batch != workload.batch) {
    lines.emplace_back("sequences together", FormatCount(static_cast<uint64_t>(figures.batch)));
  }
  lines.emplace_back("time to first token", SecondsWithin(figures.ttft, figures.ttft_interval));
  if (figures.time_per_token > 0) {
    lines.emplace_back("time per token",
                       SecondsWithin(figures.time_per_token, figures.time_per_token_interval));
  }
  const Interval& rates = figures.throughput_interval;
  lines.emplace_back("throughput",
                     fmt::format("{} tokens/s  {}", PlainNumber(figures.throughput),
                                 IsKnown(rates) ? fmt::format("({} - {})", PlainNumber(rates.low),
                                                              PlainNumber(rates.high))
                                                : kNoInterval));
  lines.emplace_back("memory per rank", MemoryWords(candidate));
  if (candidate.plan.changes_layout()) {
    lines.emplace_back("transition", TransitionWords(candidate));
    lines.emplace_back(
        "solver", fmt::format("{}, in the figures above, and not in what plans are compared by",
                              FormatSeconds(figures.solver_seconds)));
  }
  if (figures.extrapolated_share > 0.005) {
    lines.emplace_back(
        "extrapolated",
        fmt::format("{:.0f} % of the time of tasks is at sizes beyond those measured",
                    100 * figures.extrapolated_share));
  }
  return lines;
}

std::string DescribeFigures(const Candidate& candidate, const planner::Workload& workload) {
  std::string text;
  for (const auto& [name, value] : FigureLines(candidate, workload))
    text += ReportLine(name, value);
  return text;
}

bool IsKnown(const Interval& interval) {
  constexpr double kRounding = 1e-9;
  return interval.high - interval.low > kRounding * std::abs(interval.high);
}

std::string FormatSeconds(double seconds) {
  // What rounds to a thousand of a unit is one of the next.
  constexpr double kRounded = 0.9995;
  if (seconds >= kRounded) return fmt::format("{} s", PlainNumber(seconds, 3));
  if (seconds >= kRounded * 1e-3) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return fmt::format("{:.3g} us", 1e6 * seconds);
}

std::string ToText(const PlanReport& report) {
  const Candidate& chosen = report.chosen();
  const planner::Workload& workload = report.question.workload;
  std::string text = fmt::format("{}: {}\n", report.model, WorkloadWords(workload));
  text += ReportLine("plan", Describe(chosen));
  if (!report.answer.why_chosen.empty()) text += ReportLine("", report.answer.why_chosen);
  if (report.batch) text += ReportLine("batch", report.batch->Describe(workload.num_requests));
  text += DescribeFigures(chosen, workload);
  std::string_view name = "changes";
  const std::vector<std::string> changes = ChangesIn(report, chosen);
  for (const std::string& change : changes) text += ReportLine(std::exchange(name, ""), change);
  if (!changes.empty()) text += ReportLine("", kWhereChangesWereMeasured);
  text += ReportLine("costs from", CostsWords(report));
  if (report.costs.steps.empty()) {
    if (const std::string relatives = WordsOfRelatives(report.costs); !relatives.empty()) {
      text += ReportLine("", relatives);
    }
  }
  std::string_view not_looked_at = "not looked at";
  for (const std::string& plans : NotLookedAt(report)) {
    text += ReportLine(std::exchange(not_looked_at, ""), plans);
  }
  text += ReportLine("run it with", HowToRun(report));
  if (report.verification) text += "\n" + ToText(*report.verification, report.answer);
  if (!report.explanation.alternatives.empty()) text += "\nalternatives, and why they lost\n";
  for (const planner::Alternative& alternative : report.explanation.alternatives) {
    text += fmt::format("  {:>8}  {}\n            {}\n            {}\n",
                        SignedPercent(alternative.slower), Describe(report.of(alternative)),
                        alternative.reason, alternative.would_win);
    const std::string its_changes = AlternativeChanges(report, report.of(alternative));
    if (!its_changes.empty()) text += fmt::format("            changes: {}\n", its_changes);
    // One process that interleaves its memory, or other numbers of ranks, are started otherwise.
    const Candidate& other = report.of(alternative);
    const std::string command = CommandOf(report, other, "");
    if (other.setup.num_ranks != chosen.setup.num_ranks && !command.empty()) {
      text += fmt::format("            run it with {}\n", command);
    }
  }
  if (!report.explanation.flips.empty()) text += "\nwhat would change the choice\n";
  for (const planner::Flip& flip : report.explanation.flips) {
    text += fmt::format("  {}\n", flip.words);
  }
  return text + fmt::format("\nsearched {} with {} simulated in {:.2f} s, explained in {:.2f} s\n",
                            FormatCount(report.answer.candidates.size(), "plan"),
                            FormatCount(static_cast<uint64_t>(report.answer.num_simulated), "step"),
                            report.answer.seconds, report.explanation.seconds);
}

namespace {

// As a share.
double SlowerThanChosen(const PlanReport& report, const Candidate& candidate) {
  return candidate.figures->score / report.chosen().figures->score - 1;
}

std::string WhatItNeeds(const Candidate& candidate) {
  if (candidate.is_allowed()) return "";
  return fmt::format(" (--allow {})", fmt::join(candidate.needs, ","));
}

}  // namespace

std::string ExplainSearch(const PlanReport& report) {
  TextTable table;
  table.AddRow({"pass", "added", "rejected", "steps", "seconds", "gain"});
  table.AddRule();
  std::string purposes;
  for (const planner::PassReport& pass : report.answer.passes) {
    if (pass.is_off) {
      table.AddRow({pass.name, "switched off"});
      continue;
    }
    const bool has_gain = pass.best_before > 0 && pass.best_after < pass.best_before;
    table.AddRow(
        {pass.name, fmt::to_string(pass.num_added), fmt::to_string(pass.num_rejected),
         fmt::to_string(pass.num_simulated), fmt::format("{:.3f}", pass.seconds),
         has_gain ? fmt::format("{:.1f} %", 100 * (pass.best_before / pass.best_after - 1)) : ""});
    purposes += fmt::format("  {}: {}\n", pass.name, pass.purpose);
    if (!pass.remark.empty()) purposes += fmt::format("    {}\n", pass.remark);
  }
  std::string text = "\npasses\n" + table.Format() + purposes;
  text += "\nrejected\n";
  for (const Candidate& candidate : report.answer.candidates) {
    if (candidate.rejected_by.empty()) continue;
    const bool is_unknown = candidate.rejected_by == "setups";  // its reason names it
    text += fmt::format("  {}{} ({})\n", is_unknown ? "" : Describe(candidate) + ": ",
                        candidate.reason, candidate.rejected_by);
  }
  text += "\npriced, and how much longer than the chosen plan\n";
  for (const Candidate& candidate : report.answer.candidates) {
    if (!candidate.is_ranked()) continue;
    text += fmt::format("  {}: {:+.1f} %{}\n", Describe(candidate),
                        100 * SlowerThanChosen(report, candidate), WhatItNeeds(candidate));
  }
  text += "\npriced, but no pipelines were searched for them\n";
  for (const Candidate& candidate : report.answer.candidates) {
    if (candidate.not_refined.empty()) continue;
    text += fmt::format("  {}: {}\n", Describe(candidate), candidate.not_refined);
  }
  return text;
}

ordered_json PlanFile(const PlanReport& report) {
  const Candidate& chosen = report.chosen();
  plan::Plan plan = WholePlan(chosen);
  plan.made_for = plan::MadeFor{.model = report.model_hash, .num_ranks = chosen.setup.num_ranks};
  // What was priced is executed, whatever is usual then.
  if (report.question.workload.arrival_rate <= 0 && chosen.figures) {
    plan.sequences = std::min(chosen.figures->batch, plan::kMostSequences);
    const int tokens = plan.step_tokens_for(chosen.figures->batch, report.question.step_tokens);
    if (tokens != engine::LoadOptions{}.max_step_tokens) {
      plan.step_tokens = std::min(tokens, plan::kMostStepTokens);
    }
  }
  ordered_json json = plan::ToJson(plan);
  json["predicted"] = FiguresJson(chosen);
  json["predicted"]["workload"] = WorkloadJson(report.question.workload);
  json["predicted"]["profile"] = report.profile;
  json["predicted"]["model"] = report.model;  // convene simulate looks there
  if (report.verification) {
    json["predicted"]["verified"] = ToJson(*report.verification, report.answer);
  }
  json["predicted"]["question"] =
      QuestionJson(report.question, report.config, report.costs, report.profile);
  json["alternatives"] = AlternativesJson(report);
  return json;
}

ordered_json ToJson(const PlanReport& report) {
  const planner::PlanAnswer& answer = report.answer;
  ordered_json json = {{"model", report.model},
                       {"search_seconds", answer.seconds},
                       {"explain_seconds", report.explanation.seconds},
                       {"simulated_steps", answer.num_simulated},
                       {"workload", WorkloadJson(report.question.workload)}};
  const ordered_json file = PlanFile(report);
  json["plan"] = file;
  json["plan"].erase("predicted");
  json["plan"].erase("alternatives");
  json["name"] = Describe(report.chosen());
  json["why_chosen"] = answer.why_chosen;
  json["command"] = CommandOf(report);
  if (report.batch) {
    json["batch"] = {{"chosen", report.batch->batch}, {"tried", ordered_json::array()}};
    for (const planner::TriedBatch& one : report.batch->tried) {
      json["batch"]["tried"].push_back(
          {{"batch", one.batch},
           {"seconds", one.seconds > 0 ? ordered_json(one.seconds) : ordered_json()}});
    }
  }
  json["changes"] = ChangesIn(report, report.chosen());
  json["predicted"] = FiguresJson(report.chosen());
  if (report.verification) json["verified"] = file["predicted"]["verified"];
  json["alternatives"] = file["alternatives"];
  json["flips"] = ordered_json::array();
  for (const planner::Flip& flip : report.explanation.flips) {
    ordered_json one = {{"figure", flip.figure}, {"factor", nullptr}, {"words", flip.words}};
    if (flip.candidate >= 0) {
      one["factor"] = flip.factor;
      one["per_s"] = flip.rate;
      one["choice"] = Describe(answer.candidates[flip.candidate]);
    }
    json["flips"].push_back(std::move(one));
  }
  json["regret_by_batch"] = {{"batches", report.explanation.batches},
                             {"best", ordered_json::array()},
                             {"plans", ordered_json::array()}};
  for (const int best : report.explanation.best) {
    json["regret_by_batch"]["best"].push_back(
        best < 0 ? ordered_json() : ordered_json(Describe(answer.candidates[best])));
  }
  for (const planner::RegretCurve& curve : report.explanation.curves) {
    json["regret_by_batch"]["plans"].push_back(
        {{"name", Describe(answer.candidates[curve.candidate])}, {"regret", curve.regret}});
  }
  json["passes"] = ordered_json::array();
  for (const planner::PassReport& pass : answer.passes) {
    json["passes"].push_back({{"name", pass.name},
                              {"off", pass.is_off},
                              {"seconds", pass.seconds},
                              {"added", pass.num_added},
                              {"rejected", pass.num_rejected},
                              {"simulated_steps", pass.num_simulated},
                              {"best_before", pass.best_before},
                              {"best_after", pass.best_after},
                              {"remark", pass.remark}});
  }
  json["ranked"] = ordered_json::array();
  for (const Candidate& candidate : answer.candidates) {
    if (!candidate.is_ranked()) continue;
    json["ranked"].push_back({{"name", Describe(candidate)},
                              {"slower", SlowerThanChosen(report, candidate)},
                              {"needs", candidate.needs}});
  }
  json["rejected"] = ordered_json::array();
  for (const Candidate& candidate : answer.candidates) {
    if (candidate.rejected_by.empty()) continue;
    json["rejected"].push_back({{"name", Describe(candidate)},
                                {"pass", candidate.rejected_by},
                                {"reason", candidate.reason}});
  }
  return json;
}

}  // namespace convene::cli
